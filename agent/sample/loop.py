"""Runs the samplers beside training: each on its own period, apart from the others, and never at any price.

    a run takes longer than slow_ns    its interval doubles, up to interval_ns_max; said once for each new length
    the next run is quick again        its interval halves, down to interval_ns: a hiccup costs one sample, not all
    failures_max failures in a row     the sampler is switched off for good, and it is said

A sampler cannot be stopped while it runs: a driver call has no deadline. What is bounded is how often it may be slow.
"""

from collections.abc import Callable, Mapping, Sequence
from time import thread_time_ns
from typing import Generic, TypeVar

import msgspec

from rankscope.agent.guard import log_line
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_MS, NS_PER_S, format_duration

T = TypeVar("T")

SLOW_NS = 10 * NS_PER_MS
"""At one sample a second 1 % of a core, what the whole agent may cost. The host sampler takes 0.03 ms."""

INTERVAL_NS_MAX = 60 * NS_PER_S
"""So that a sampler that is always slow still gives one sample to most Prometheus rate windows (5 minutes)."""

FAILURES_MAX = 3

RARER_TIMES = 16
"""Of a sampler that has to save: every 32 s at the default, so it costs next to nothing and is still there."""


class SamplerCounts(msgspec.Struct, frozen=True):
    """What one sampler has done so far. `last_duration_ns` is None before its first run; failed runs count too.

    `cpu_ns` is the CPU time of the calling thread in all its runs; in the rest of `total_ns` a driver let it wait.
    """

    last_duration_ns: int | None
    total_ns: int
    cpu_ns: int
    successes: int
    failures: int
    interval_ns: int
    is_off: bool


class _Sampler(msgspec.Struct, Generic[T]):
    """One sampler, and how it is doing."""

    read: Callable[[], T]
    interval_ns: int
    interval_ns_said: int
    due_ns: int | None = None
    result: T | None = None
    last_duration_ns: int | None = None
    total_ns: int = 0
    cpu_ns: int = 0
    successes: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    is_off: bool = False

    def is_due(self, now_ns: int) -> bool:
        return not self.is_off and (self.due_ns is None or now_ns >= self.due_ns)


class SampleLoop(Generic[T]):
    """Runs samplers by name. One thread drives it; it starts none and never sleeps.

    `on_error` gets every exception of a sampler with the sampler's name, `on_notice` a sentence for people when a
    sampler becomes rarer or is switched off. Neither may raise.
    """

    def __init__(
        self,
        samplers: Mapping[str, Callable[[], T]],
        clock: Clock,
        interval_ns: int,
        on_error: Callable[[str, Exception], None],
        *,
        on_notice: Callable[[str], None] = log_line,
        slow_ns: int = SLOW_NS,
        interval_ns_max: int = INTERVAL_NS_MAX,
        failures_max: int = FAILURES_MAX,
        read_cpu_ns: Callable[[], int] = thread_time_ns,
    ) -> None:
        self._clock = clock
        self._interval_ns = interval_ns
        self._interval_ns_max = max(interval_ns, interval_ns_max)
        self._slow_ns = slow_ns
        self._failures_max = failures_max
        self._on_error = on_error
        self._on_notice = on_notice
        self._read_cpu_ns = read_cpu_ns
        self._rarer: frozenset[str] = frozenset()
        self._samplers = {part: _Sampler(read, interval_ns, interval_ns) for part, read in samplers.items()}

    def due(self, now_ns: int) -> bool:
        """Whether `run` would run anything. Every sampler is due at once the first time."""
        return any(sampler.is_due(now_ns) for sampler in self._samplers.values())

    def run(self, now_ns: int) -> None:
        """Run each sampler that is due. A run that comes late is not made up for."""
        self._run_these([part for part, sampler in self._samplers.items() if sampler.is_due(now_ns)], now_ns)

    def run_all(self, now_ns: int) -> None:
        """Run each sampler that is not switched off, due or not."""
        self._run_these([part for part, sampler in self._samplers.items() if not sampler.is_off], now_ns)

    def _run_these(self, parts: Sequence[str], now_ns: int) -> None:
        for part in parts:
            sampler = self._samplers[part]
            self._run_one(part, sampler)
            times = RARER_TIMES if part in self._rarer else 1
            sampler.due_ns = now_ns + times * sampler.interval_ns

    def sample_less_often(self, parts: frozenset[str]) -> None:
        """From their next run on these samplers run once in RARER_TIMES their interval, all others as they should."""
        self._rarer = parts

    @property
    def latest(self) -> Mapping[str, T]:
        """What each sampler's last run gave. One that has not run yet, or failed the last time, is not in it."""
        return {part: sampler.result for part, sampler in self._samplers.items() if sampler.result is not None}

    @property
    def counts(self) -> Mapping[str, SamplerCounts]:
        """What each sampler has done so far."""
        return {
            part: SamplerCounts(
                last_duration_ns=sampler.last_duration_ns,
                total_ns=sampler.total_ns,
                cpu_ns=sampler.cpu_ns,
                successes=sampler.successes,
                failures=sampler.failures,
                interval_ns=sampler.interval_ns,
                is_off=sampler.is_off,
            )
            for part, sampler in self._samplers.items()
        }

    def _run_one(self, part: str, sampler: _Sampler[T]) -> None:
        is_first = sampler.last_duration_ns is None
        start_ns, start_cpu_ns = self._clock.monotonic_ns(), self._read_cpu_ns()
        try:
            sampler.result = sampler.read()
        except Exception as error:  # noqa: BLE001 - the boundary: whatever one sampler raises must not reach the others
            self._count_failure(part, sampler, error)
        else:
            sampler.successes += 1
            sampler.failures_in_a_row = 0
        sampler.last_duration_ns = self._clock.monotonic_ns() - start_ns
        sampler.total_ns += sampler.last_duration_ns
        sampler.cpu_ns += self._read_cpu_ns() - start_cpu_ns
        if not is_first:  # the first run loads libraries and opens devices, which says nothing about the later ones
            self._pace(part, sampler, sampler.last_duration_ns)

    def _count_failure(self, part: str, sampler: _Sampler[T], error: Exception) -> None:
        sampler.result = None  # a sample of before would pass for one of now
        sampler.failures += 1
        sampler.failures_in_a_row += 1
        self._on_error(part, error)
        if sampler.failures_in_a_row >= self._failures_max:
            sampler.is_off = True
            self._on_notice(
                f"sampler {part} is switched off after {sampler.failures_in_a_row} failures in a row, the last "
                f"{type(error).__name__}: {error}; training is not affected, its values are absent from now on"
            )

    def _pace(self, part: str, sampler: _Sampler[T], duration_ns: int) -> None:
        if duration_ns <= self._slow_ns:
            sampler.interval_ns = max(self._interval_ns, sampler.interval_ns // 2)
            return
        sampler.interval_ns = min(self._interval_ns_max, sampler.interval_ns * 2)
        if sampler.interval_ns > sampler.interval_ns_said and not sampler.is_off:
            sampler.interval_ns_said = sampler.interval_ns
            self._on_notice(
                f"sampler {part} took {format_duration(duration_ns)}, the limit is {format_duration(self._slow_ns)}; "
                f"it now runs every {format_duration(sampler.interval_ns)}"
            )
