"""How the agent thread has long steps looked at, with a sampler that is not started."""

from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.agent.agent_thread import STEPS_MIN, AgentThread
from rankscope.agent.captures import quiet_steps
from rankscope.agent.captures.quiet_steps import STALLS_MIN
from rankscope.agent.captures.thread_sampler import Sampled
from rankscope.agent.guard import LINE_SAMPLES, Guard
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS

USUAL_NS, LONG_NS = 20 * NS_PER_MS, 500 * NS_PER_MS


class Sampler:
    def __init__(self) -> None:
        self.is_usable, self.is_paused = True, False
        self.begun: list[Sampled] = []
        self.begin = self.begun.append

    def start(self) -> None:
        """Start nothing."""


def make(sampler: Sampler) -> AgentThread:
    """Return an agent thread that is not started, of a process whose usual steps are known."""
    training: Any = SimpleNamespace(
        windows=SimpleNamespace(sampling=SimpleNamespace(find_sampler=lambda: sampler)),
        timer=SimpleNamespace(step=STALLS_MIN),
        hooks=SimpleNamespace(buffer=SimpleNamespace(thread=1)),
        count_events=lambda: 0,
    )
    thread = AgentThread.__new__(AgentThread)
    thread._training, thread._guard, thread._quiet = training, Guard(error_budget=3), None
    thread._step_times_ns = [USUAL_NS] * STEPS_MIN
    return thread


def long_steps(count: int = STALLS_MIN) -> list[StepRecord]:
    return [StepRecord(step=step, start_host_ns=0, duration_ns=LONG_NS, phases_ns={}) for step in range(count)]


def test_looks_begin_with_the_last_of_some_long_steps() -> None:
    sampler = Sampler()
    thread = make(sampler)
    thread._read_quiet(long_steps(STALLS_MIN - 1))
    assert sampler.begun == []
    thread._read_quiet(long_steps(1))
    thread._read_quiet(long_steps(1))
    assert sampler.begun == [thread._quiet]


def test_looks_end_while_the_sampler_is_paused_and_begin_again() -> None:
    sampler = Sampler()
    thread = make(sampler)
    thread._read_quiet(long_steps())
    sampler.is_paused = True
    thread._read_quiet([])
    (quiet,) = sampler.begun
    assert not quiet.is_wanted
    sampler.is_paused = False
    thread._read_quiet([])
    assert (quiet.is_wanted, sampler.begun) == (True, [quiet, quiet])


def test_an_error_of_a_look_is_counted_and_loses_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(quiet_steps.QuietSteps, "take", fail)
    thread = make(Sampler())
    assert thread._read_quiet(long_steps()) == ()
    assert thread._guard.errors == {LINE_SAMPLES: 1}
