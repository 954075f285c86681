"""Blocking calls on the fake GPU, from the script's line to the report, against the device's own list of calls."""

from pathlib import Path
from typing import NamedTuple

from rankscope.measure.records import WindowSynchronizations
from tests.fake_gpu import BLOCKING_CALL, Work, read_work
from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import ALONE, SCRIPTS, run_forked

SCRIPT = "fake_gpu_waits.py"
LINES = (SCRIPTS / SCRIPT).read_text().splitlines()
WAITS_AT = next(number for number, line in enumerate(LINES, start=1) if line.endswith("# the host waits here"))
WAIT_NS = 75_000_000
"""A wait lasts longer than that, and so the distance of two samples several times: a busy machine does not hide it."""
CALL, OPERATOR = "cudaStreamSynchronize", "aten::_local_scalar_dense"
LINE = f"{SCRIPT}:{WAITS_AT} (train)"


class Job(NamedTuple):
    """What the rank has reported, and the device's work."""

    life: Life
    work: list[Work]

    @property
    def windows(self) -> list[WindowSynchronizations]:
        return [window for report in self.life.reports for window in report.synchronizations]

    def find_waits_ns(self, window: WindowSynchronizations) -> list[int]:
        """Return how long each call that began in the window's steps waited, as the device knows it: from the call to
        the end of the work before it.
        """
        steps = {record.step: record for record in self.life.steps}
        begin_ns = steps[window.first_step].start_host_ns
        end_ns = steps[window.first_step + window.step_count - 1].end_host_ns
        calls = [one for one in self.work if one.kind == BLOCKING_CALL and begin_ns <= one.called_ns < end_ns]
        ends_ns = [one.end_ns for one in self.work if one.kind != BLOCKING_CALL]
        return [max(done for done in ends_ns if done <= call.end_ns) - call.begin_ns for call in calls]


def train(folder: Path, *options: str, steps: int = 44, **more: str) -> Job:
    file = folder / "work.txt"
    words = (SCRIPT, find_library(), str(file), "--steps", str(steps), "--wait-ns", str(WAIT_NS), *options)
    with listening() as collector:
        ended = run_forked(*words, environment={**ALONE, **settings(collector.endpoint, **more)})
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (life,) = collector.lives
    assert life.losses.errors == {}
    return Job(life, read_work(file))


def test_the_line_that_waits_is_reported_with_all_of_its_time(tmp_path: Path) -> None:
    job = train(tmp_path)
    assert job.windows
    for window in job.windows:
        waits_ns = job.find_waits_ns(window)
        assert window.step_count == len(waits_ns) == sum(kind.count for kind in window.kinds)
        assert {(kind.call, kind.operator) for kind in window.kinds} == {(CALL, OPERATOR)}
        assert window.call_ns == {CALL: sum(waits_ns)}
        # The host launches nothing for WAIT_NS after a wait of more than that.
        assert all(wait_ns > WAIT_NS for wait_ns in waits_ns)
        assert WAIT_NS * window.step_count < window.idle_ns <= sum(waits_ns)
        assert sum(kind.idle_ns for kind in window.kinds) == window.idle_ns
    assert {kind.line for window in job.windows for kind in window.kinds} <= {LINE, None}
    # A sample of a busy machine may come too late, or take too long: how many waits have the line is the machine's.
    assert LINE in {kind.line for window in job.windows for kind in window.kinds}
    last = job.life.reports[-1].totals
    assert last.call_ns == {CALL: sum(window.call_ns[CALL] for window in job.windows)}


def test_without_the_sampler_the_call_has_no_line(tmp_path: Path) -> None:
    job = train(tmp_path, line_samples="false")
    assert job.windows
    found = {(kind.call, kind.operator, kind.line) for window in job.windows for kind in window.kinds}
    assert found == {(CALL, OPERATOR, None)}
    assert all(window.call_ns[CALL] == sum(job.find_waits_ns(window)) for window in job.windows)


def test_a_script_that_never_waits_has_windows_without_calls(tmp_path: Path) -> None:
    job = train(tmp_path, "--never", steps=200)
    assert job.windows
    assert {(window.waits_ns, window.idle_ns, window.kinds) for window in job.windows} == {(0, 0, ())}
    assert job.life.reports[-1].totals.call_ns == {}
