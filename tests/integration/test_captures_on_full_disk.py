"""Captures of a collector whose disk is full: what is said, what is left on the disk, and what goes on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.captures.capture import ENDED
from rankscope.collector.captures.trace_analysis import TraceAnalysis
from tests.integration.serving import wait_for
from tests.integration.small_disk import fill, mounted
from tests.unit.collector.captures.test_capture_thread import Collector
from tests.unit.collector.runs.run_stories import boot_of

TRACES = Path(__file__).parents[1] / "traces"
CURE = "free some space there, or lower capture_store_bytes_max: the oldest captures are then deleted"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    with mounted(tmp_path / "disk", 1) as folder:
        if folder is None:
            pytest.skip("no file system can be mounted here")
        yield folder


def test_file_without_room_is_deleted_and_the_other_one_kept(disk: Path) -> None:
    collector = Collector(disk)
    collector.ranks.ranks[boot_of(1)].content = bytes(1_500_000)  # of 1,048,576
    collector.captures.start()
    asked = collector.order(ranks=(1, 2))
    done = collector.wait()
    folder = disk / "store.db-captures" / asked.id
    reason = f"its file cannot be written: No space left on device ({folder}); {CURE}"
    assert [(one.state, one.reason) for one in done.ranks] == [("failed", reason), ("fetched", "")]
    assert f"rank 1: {reason}" in done.problem
    assert sorted(path.name for path in folder.glob("*rank*")) == ["rank-2.pt.trace.json.gz"]
    collector.captures.stop()


def test_capture_fails_on_a_full_disk_and_the_next_one_is_taken(disk: Path) -> None:
    collector = Collector(disk)
    collector.captures.start()
    filler = fill(disk)
    asked = collector.order(ranks=(1,))
    failed = collector.wait()
    folder = disk / "store.db-captures" / asked.id
    assert failed.problem == f"the folder of captures cannot be used: No space left on device ({folder}); {CURE}"
    assert failed.state == "failed"
    filler.unlink()
    again = collector.order(ranks=(1,))
    assert collector.wait(lambda one: one.id == again.id and one.state in ENDED).ranks[0].state == "fetched"
    assert {path.name for path in folder.iterdir()} <= {"capture.json"}  # kept where the thread found room again
    collector.captures.stop()


def test_disk_full_at_the_analysis_leaves_only_the_traces(disk: Path) -> None:
    shutil.copy(TRACES / "cpu_only_r34.json.gz", disk / "rank-0.pt.trace.json.gz")
    analysis = TraceAnalysis(disk, ["rank-0.pt.trace.json.gz"])
    fill(disk)
    wait_for(lambda: analysis.poll() or None, lambda: "the analysis goes on")
    assert f"the disk of {disk} is full: {CURE}" in analysis.problem
    assert analysis.problem.startswith("analyze ended with status 1")
    assert sorted(path.name for path in disk.glob("[!.]*")) == ["filler", "rank-0.pt.trace.json.gz"]
