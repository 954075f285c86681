"""A rank whose kernels are slow, on the fake GPU under torchrun: the incident orders a capture of it and of a peer, and
what the capture says names the modules that are longer at as many launches.
"""

from pathlib import Path

from rankscope.collector.captures.capture import ENDED, Capture
from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.ordering_collectors import running
from tests.integration.serving import wait_for
from tests.integration.torchrun import forked_ranks, started
from tests.nvml_stand_in import compile_nvml

SCRIPT = "fake_gpu_ranks.py"
RANKS = 3
STEPS = 2_000
SLOW = 2


def test_incident_of_slow_kernels_lists_the_longer_modules(tmp_path: Path) -> None:
    compile_nvml(tmp_path)
    slow = ("--in-traces", "--slow-rank", str(SLOW), "--slow-ratio", "1.5", "--slow-from", "60")
    sizes = ("--steps", str(STEPS), "--kernel-ns", "400000")
    # A process of its own: the loader reads LD_LIBRARY_PATH only when a program begins.
    command = forked_ranks(RANKS, SCRIPT, find_library(), str(tmp_path), *sizes, *slow).command
    with running(tmp_path, captures_on_incident=True) as service:
        windows = {"full_window_interval_s": "1", "constant_full_window_steps": "4"}
        given = settings(service.endpoint, run="job", gpu="true", sample_interval_s="0.5", **windows)
        with started(command, {**given, "LD_LIBRARY_PATH": str(tmp_path)}):

            def look() -> Capture | None:
                newest = next(iter(service.captures.captures), None)
                return newest if newest is not None and newest.state in ENDED else None

            taken = wait_for(look, lambda: str((service.captures.captures, service.snapshot.runs)))
    assert SLOW in {one.rank for one in taken.ranks}
    assert taken.options == ("modules",)
    assert f"Rank {SLOW} (" in taken.verdict, taken
    assert "Longer at as many launches: " in taken.verdict
    assert " 1.5" in taken.verdict.partition("at as many launches: ")[2]
