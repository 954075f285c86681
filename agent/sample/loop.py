"""Runs the samplers, each at its own interval, and limits the cost of slow or failing ones.

    a run takes longer than slow_ns    its interval doubles, up to interval_ns_max; logged once for each new length
    the next run is fast               its interval halves, down to interval_ns
    failures_max failures in a row     the sampler is switched off for good, which is logged

A running sampler cannot be stopped, since a driver call has no timeout; only the frequency of slow runs is bounded.
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
"""1 % of a core at one sample per second. The host sampler takes 0.03 ms."""

INTERVAL_NS_MAX = 60 * NS_PER_S
"""Short enough that Prometheus rates over 5 minutes work even with a sampler that is always slow."""

FAILURES_MAX = 3

RARER_TIMES = 16
"""Factor of the interval when the governor reduces samples: every 32 s at the default."""


class SamplerCounts(msgspec.Struct, frozen=True):
    """The statistics of one sampler, failed runs included. `last_duration_ns` is None before its first run.

    `cpu_ns` is the CPU time of the calling thread in all runs; the rest of `total_ns` was spent waiting for a driver.
    """

    last_duration_ns: int | None
    total_ns: int
    cpu_ns: int
    successes: int
    failures: int
    interval_ns: int
    is_off: bool


class _Sampler(msgspec.Struct, Generic[T]):
    """One sampler with its state."""

    read: Callable[[], T]
    interval_ns: int
    interval_ns_logged: int
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
    """The samplers of a process by name. Used by one thread; it neither starts threads nor sleeps.

    `on_error` gets every exception of a sampler with the sampler's name, `on_notice` a sentence for the user when a
    sampler runs less often or is switched off. Neither may raise.
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
        """Return whether any sampler is due. Every one is due at the start."""
        return any(sampler.is_due(now_ns) for sampler in self._samplers.values())

    def run(self, now_ns: int) -> None:
        """Run each sampler that is due. Missed runs are not repeated."""
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
        """From their next run on, run these samplers at RARER_TIMES their interval, all others at their interval."""
        self._rarer = parts

    @property
    def latest(self) -> Mapping[str, T]:
        """The last result of each sampler, without those that have not run yet or failed the last time."""
        return {part: sampler.result for part, sampler in self._samplers.items() if sampler.result is not None}

    @property
    def counts(self) -> Mapping[str, SamplerCounts]:
        """The statistics of each sampler."""
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
        except Exception as error:  # noqa: BLE001 - an error of one sampler must not affect the others
            self._count_failure(part, sampler, error)
        else:
            sampler.successes += 1
            sampler.failures_in_a_row = 0
        sampler.last_duration_ns = self._clock.monotonic_ns() - start_ns
        sampler.total_ns += sampler.last_duration_ns
        sampler.cpu_ns += self._read_cpu_ns() - start_cpu_ns
        if not is_first:  # the first run loads libraries and opens devices
            self._adjust_interval(part, sampler, sampler.last_duration_ns)

    def _count_failure(self, part: str, sampler: _Sampler[T], error: Exception) -> None:
        sampler.result = None  # so that an old sample is not taken as current
        sampler.failures += 1
        sampler.failures_in_a_row += 1
        self._on_error(part, error)
        if sampler.failures_in_a_row >= self._failures_max:
            sampler.is_off = True
            self._on_notice(
                f"sampler {part} is switched off after {sampler.failures_in_a_row} failures in a row, the last "
                f"{type(error).__name__}: {error}; training is not affected, its values are absent from now on"
            )

    def _adjust_interval(self, part: str, sampler: _Sampler[T], duration_ns: int) -> None:
        if duration_ns <= self._slow_ns:
            sampler.interval_ns = max(self._interval_ns, sampler.interval_ns // 2)
            return
        sampler.interval_ns = min(self._interval_ns_max, sampler.interval_ns * 2)
        if sampler.interval_ns > sampler.interval_ns_logged and not sampler.is_off:
            sampler.interval_ns_logged = sampler.interval_ns
            self._on_notice(
                f"sampler {part} took {format_duration(duration_ns)}, the limit is {format_duration(self._slow_ns)}; "
                f"it now runs every {format_duration(sampler.interval_ns)}"
            )
