"""ReductionProcesses: one child at a time, in order, with a limit on everything; and the real child process."""

import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field

import msgspec
import pytest

from rankscope.agent.profiler.reduce_window import (
    ENVIRONMENT,
    TIME_LIMIT_S,
    StepBounds,
    WindowAnswer,
    WindowRequest,
    command_line,
    reduce_window,
)
from rankscope.agent.profiler.reduction_process import (
    WAITING_MAX,
    ReductionProcesses,
    spawn,
)
from rankscope.agent.spawned_child import Child, EndedChild, SpawnedChild
from rankscope.measure.units import NS_PER_S
from rankscope.measure.window_columns import WindowColumns

DEADLINE_S = 300.0
ALWAYS_A_CHILD = -1
"""Events up to which a window is reduced in place: none is."""


def request(step: int) -> WindowRequest:
    """Return the request of a window of one step without events, which is all idle."""
    steps = (StepBounds(step, 0, 1_000),)
    return WindowRequest(columns=WindowColumns(), steps=steps, wall_minus_host_ns=0, on_device=False)


def steps_of(answers: list[WindowAnswer]) -> list[int]:
    return [found.first_step for answer in answers for found in answer.breakdowns]


@dataclass
class HeldChild:
    """A child that ends when the test sets its result."""

    request: WindowRequest
    ended: EndedChild | None = None
    is_killed: bool = False
    is_reaped: bool = False

    def end(self, exit_code: int = 0, output: bytes | None = None) -> None:
        answer = msgspec.msgpack.encode(reduce_window(self.request)) if output is None else output
        self.ended = EndedChild(exit_code, 7, answer)

    def poll(self) -> EndedChild | None:
        assert not self.is_reaped, "a child can be waited for once"
        self.is_reaped = self.ended is not None
        return self.ended

    def kill(self) -> None:
        assert not self.is_reaped, "there may be another process of this number by now"
        self.is_killed = self.is_reaped = True


@dataclass
class Nursery:
    """Every child started, and the clock."""

    children: list[HeldChild] = field(default_factory=list)
    now_ns: int = 0

    def spawn(self, encoded: bytes) -> Child:
        assert all(child.is_reaped for child in self.children), "one at a time"
        self.children.append(HeldChild(msgspec.msgpack.decode(encoded, type=WindowRequest)))
        return self.children[-1]

    def make(self) -> ReductionProcesses:
        return ReductionProcesses(self.spawn, lambda: self.now_ns, in_place_events_max=ALWAYS_A_CHILD)


def test_small_windows_are_reduced_in_place() -> None:
    nursery = Nursery()
    reducing = ReductionProcesses(nursery.spawn, lambda: 0, in_place_events_max=1)
    reducing.submit(request(1))
    assert (steps_of(reducing.collect()), nursery.children) == ([1], [])
    large = WindowColumns(category=bytes(2), name=bytes(8), lane=bytes(8), start_ns=bytes(16), duration_ns=bytes(16))
    reducing.submit(msgspec.structs.replace(request(2), columns=large))
    reducing.submit(request(3))
    # The small one behind it waits its turn: answers come in the windows' order.
    assert (steps_of(reducing.collect()), len(nursery.children)) == ([], 1)


def test_pattern_of_the_user_runs_in_a_child_first() -> None:
    nursery = Nursery()
    reducing = ReductionProcesses(nursery.spawn, lambda: 0, communication_kernels="^mine")
    reducing.submit(request(4))
    assert steps_of(reducing.collect()) == [4], "on a CPU there are no kernels to match: in place"
    for step in (5, 6):
        reducing.submit(msgspec.structs.replace(request(step), on_device=True))
    assert [child.request.communication_kernels for child in nursery.children] == ["^mine"]
    reducing.finish()
    assert reducing.failed == {"reduction_untried": 2}


def test_pattern_that_a_child_got_through_is_used_at_the_end() -> None:
    nursery = Nursery()
    reducing = ReductionProcesses(nursery.spawn, lambda: 0, communication_kernels="^mine")
    for step in (5, 6):
        reducing.submit(msgspec.structs.replace(request(step), on_device=True))
    nursery.children[0].end()
    assert [answer.first_step for answer in reducing.collect()] == [5]
    assert ([answer.first_step for answer in reducing.finish()], reducing.failed) == ([6], {})


def test_an_answer_is_given_once_when_the_child_has_ended() -> None:
    nursery = Nursery()
    reducing = nursery.make()
    reducing.submit(request(5))
    assert reducing.collect() == []
    nursery.children[0].end()
    assert steps_of(reducing.collect()) == [5]
    assert (reducing.collect(), reducing.failed, reducing.cpu_ns) == ([], {}, 7)


def test_windows_are_reduced_in_order() -> None:
    nursery = Nursery()
    reducing = nursery.make()
    for step in (5, 6):
        reducing.submit(request(step))
    nursery.children[0].end()
    assert steps_of(reducing.collect()) == [5]
    nursery.children[1].end()
    assert steps_of(reducing.collect()) == [6]


def test_oldest_of_too_many_waiting_windows_is_dropped() -> None:
    nursery = Nursery()
    reducing = nursery.make()
    for step in range(WAITING_MAX + 2):  # the first is being reduced, the second falls out
        reducing.submit(request(step))
    assert reducing.failed == {"reduction_backlog": 1}
    assert steps_of(reducing.finish()) == [0, *range(2, WAITING_MAX + 2)]


@pytest.mark.parametrize(("exit_code", "output"), [(1, None), (-9, b""), (0, b""), (0, b"not msgpack")])
def test_a_child_that_fails_is_counted_and_the_next_is_started(exit_code: int, output: bytes | None) -> None:
    nursery = Nursery()
    reducing = nursery.make()
    for step in (5, 6):
        reducing.submit(request(step))
    nursery.children[0].end(exit_code, output)
    assert (reducing.collect(), reducing.failed) == ([], {"reduction_failed": 1})
    nursery.children[1].end()
    assert steps_of(reducing.collect()) == [6]


def test_first_failed_child_is_reported_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    def spawn_failing(_: bytes) -> Child:
        child = script("import json; json.loads('{')")
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return child

    reducing = ReductionProcesses(spawn_failing, in_place_events_max=ALWAYS_A_CHILD)
    for step in (5, 6):
        reducing.submit(request(step))
        assert reducing.collect() == []
    reducing.finish()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "rankscope: the breakdown of a profiler window could not be computed (json.decoder.JSONDecodeError: Expecting"
    )
    assert re.search(r", at /.*/json/decoder\.py:\d+\); training is not affected, and lost windows are counted$", line)


def test_a_child_that_takes_too_long_is_ended() -> None:
    nursery = Nursery()
    reducing = nursery.make()
    reducing.submit(request(5))
    nursery.now_ns = TIME_LIMIT_S * NS_PER_S
    assert (reducing.collect(), nursery.children[0].is_killed) == ([], False)
    nursery.now_ns += 1
    assert (reducing.collect(), nursery.children[0].is_killed) == ([], True)
    assert reducing.failed == {"reduction_time_limit": 1}


@pytest.mark.parametrize("error", [FileNotFoundError("no interpreter"), BlockingIOError("no more processes")])
def test_a_child_that_cannot_be_started_is_counted(error: OSError) -> None:
    def refuse(_: bytes) -> Child:
        raise error

    reducing = ReductionProcesses(refuse, in_place_events_max=ALWAYS_A_CHILD)
    reducing.submit(request(5))
    assert (reducing.collect(), reducing.failed) == ([], {"reduction_failed": 1})


def test_finish_reduces_pending_windows_at_once() -> None:
    nursery = Nursery()
    reducing = nursery.make()
    for step in (5, 6):
        reducing.submit(request(step))
    assert steps_of(reducing.finish()) == [5, 6]
    assert (nursery.children[0].is_killed, len(nursery.children), reducing.failed) == (True, 1, {})


def test_trace_files_are_read_by_a_child_and_cut_ones_counted() -> None:
    nursery = Nursery()
    reducing = ReductionProcesses(nursery.spawn, lambda: 0)
    for step, saved in ((5, SAVED[:-5]), (6, SAVED)):
        reducing.submit(msgspec.structs.replace(request(step), saved=saved))
    assert len(nursery.children) == 1
    assert (steps_of(reducing.finish()), reducing.failed) == ([6], {"reduction_failed": 1})


def test_at_the_end_a_child_that_has_just_ended_is_not_killed() -> None:
    nursery = Nursery()
    reducing = nursery.make()
    reducing.submit(request(5))
    nursery.children[0].end()
    assert (steps_of(reducing.finish()), nursery.children[0].is_killed) == ([5], False)


# -- the real child ---------------------------------------------------------------------------------------------------


def wait_for(child: Child) -> EndedChild:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        ended = child.poll()
        if ended is not None:
            return ended
        os.sched_yield()
    child.kill()
    raise AssertionError(f"not over after {DEADLINE_S} s")


def script(code: str) -> SpawnedChild:
    return SpawnedChild([sys.executable, "-c", code], b"given", os.environ)


SAVED = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 3}]}'


@pytest.mark.parametrize("saved", [b"", SAVED])
def test_real_child_gives_the_same_answer_and_its_cpu_time(saved: bytes) -> None:
    given = msgspec.structs.replace(request(5), saved=saved)
    ended = wait_for(spawn(msgspec.msgpack.encode(given)))
    assert ended.exit_code == 0
    assert msgspec.msgpack.decode(ended.output, type=WindowAnswer) == reduce_window(given)
    assert 0 < ended.cpu_ns < DEADLINE_S * NS_PER_S


def test_a_real_child_that_gets_nonsense_fails() -> None:
    assert wait_for(spawn(b"\xc1")).exit_code == 1


def test_child_input_and_output_are_complete() -> None:
    ended = wait_for(script("import sys; sys.stdout.write(sys.stdin.read() + '!')"))
    assert (ended.exit_code, ended.output) == (0, b"given!")


def test_signal_that_ended_a_child_is_reported() -> None:
    assert wait_for(script("import os; os.kill(os.getpid(), 15)")).exit_code == -signal.SIGTERM


def test_a_child_that_is_killed_is_gone() -> None:
    child = script("import signal; signal.pause()")
    child.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_child_reaped_by_the_script_is_judged_by_its_answer() -> None:
    child = script("print('done', end='')")
    os.waitpid(child.pid, 0)  # as a script may do with any child of its process
    assert child.poll() == EndedChild(0, 0, b"done")


def test_child_reaped_by_the_script_is_not_killed() -> None:
    child = script("pass")
    os.waitpid(child.pid, 0)
    child.kill()


def test_child_imports_neither_torch_nor_the_agent() -> None:
    main = "import json; print(json.dumps(sorted(sys.modules)))"
    command = command_line()
    place = command.index("-c") + 1
    command[place] = command[place].replace("main()", main)
    ended = wait_for(SpawnedChild(command, b"", {**os.environ, **ENVIRONMENT}))
    modules = msgspec.json.decode(ended.output, type=list[str])
    ours = {name for name in modules if name.startswith("rankscope.agent")}
    parts = ("", ".profiler", ".profiler.line_samples", ".profiler.reduce_window")
    assert ours == {f"rankscope.agent{part}" for part in parts}
    assert "torch" not in modules
