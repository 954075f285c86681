"""Commands whose output cannot be written to the end."""

import subprocess
import sys
from pathlib import Path

from tests.programs import find_program

LIST = (sys.executable, "-m", "rankscope.collector", "files", "--list")
LONGEST_S = 500.0


def test_closed_pipe_ends_a_command_silently() -> None:
    with subprocess.Popen(LIST, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()  # before anything is written: that it cannot be is certain
        assert listing.stderr.read() == ""
        assert listing.wait(LONGEST_S) == 128 + 13  # as a shell says of SIGPIPE


def test_full_disk_under_the_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=LONGEST_S)
    said = "rankscope: the output cannot be written: No space left on device. Free some room there.\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_copy_that_ended_early_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    name = "deploy/grafana/dashboards/fleet.json"
    copy = f"{sys.executable} -m rankscope.collector files --copy {tmp_path} {name}"
    command = [find_program("bash"), "-c", f"ulimit -f 4; exec {copy}"]  # files of 4 KiB at most
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    said = f"rankscope: {tmp_path / name} cannot be written: File too large. Name another folder.\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert not (tmp_path / name).exists()
