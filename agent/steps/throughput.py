"""Compute how fast one rank trains, by its own clock, as Paddle's benchmark block does, exactly and in bounded memory.

    reader_cost    the data phase of a step: its wait for batches
    batch_cost     the step
    reader_ratio   all of reader_cost over all of batch_cost
    ips            1 / batch_cost: steps per second; times the step's size: samples and tokens per second

An average is over time, not over steps: 12 steps in 3 s are 4 per second, however long each was. The time between steps
(evaluations) is in no number. Samples and tokens are those of this rank, their speeds over the steps where they are
known. The warm-up steps are left out.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from rankscope.measure.records import StepRecord
from rankscope.measure.units import ns_to_s, s_to_ns

RANGE_STEPS_MAX = 1000
"""The longest range of last steps that can be requested: 1000 rows of four numbers are about 100 kB."""
PENDING_MAX = 256
"""Steps that are collected before they are added up, 0.3 ms at a time, on the thread that adds the last of them."""


class Spread(msgspec.Struct, frozen=True):
    """The average of a range of steps, and the largest and smallest value of a single step."""

    average: float
    largest: float
    smallest: float


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of this rank over a range of steps. None: not known for any of these steps."""

    steps: int
    duration_s: float
    reader_cost_s: Spread
    batch_cost_s: Spread
    reader_ratio: float
    steps_per_s: Spread
    samples_per_s: Spread | None
    tokens_per_s: Spread | None


class ThroughputMeter:
    """Add up the steps of one rank. One thread adds; `find` should be called on it, too.

    Adding up a single step takes 6 us during training, in batches 1.2 us each.
    """

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._pending: list[StepRecord] = []
        self._run = _Sums()
        self._latest: deque[_Row] = deque(maxlen=RANGE_STEPS_MAX)

    @property
    def warmup_steps(self) -> int:
        """The number of first steps that are left out."""
        return self._warmup_steps

    def add(self, record: StepRecord) -> None:
        """Add a finished step."""
        self._pending.append(record)
        if len(self._pending) >= PENDING_MAX:
            self._add_up()

    def find(self, last_steps: int | None = None) -> Throughput | None:
        """Return the throughput of the run, or of its last steps, at most RANGE_STEPS_MAX; None before the first."""
        self._add_up()
        if last_steps is None:
            return self._run.to_throughput()
        sums = _Sums()
        sums.add(list(islice(reversed(self._latest), max(0, last_steps))))
        return sums.to_throughput()

    def _add_up(self) -> None:
        pending, self._pending = self._pending, []
        rows = [
            (record.duration_ns, record.phases_ns["data"], record.samples, record.tokens)
            for record in pending
            if record.step >= self._warmup_steps
        ]
        self._run.add(rows)
        self._latest += rows


_Row = tuple[int, int, int | None, int | None]
"""One step: its duration (ns), its data phase (ns), its samples, its tokens."""


class _Cost(msgspec.Struct):
    """Nanoseconds added up."""

    total_ns: int = 0
    largest_ns: int = 0
    smallest_ns: int | None = None

    def add(self, durations_ns: Sequence[int]) -> None:
        self.total_ns += sum(durations_ns)
        self.largest_ns = max(self.largest_ns, *durations_ns)
        smallest_ns = min(durations_ns)
        self.smallest_ns = smallest_ns if self.smallest_ns is None else min(self.smallest_ns, smallest_ns)

    def to_spread(self, steps: int) -> Spread:
        return Spread(ns_to_s(self.total_ns / steps), ns_to_s(self.largest_ns), ns_to_s(self.smallest_ns or 0))


class _Speed(msgspec.Struct):
    """An amount per time, over the steps where the amount is known."""

    amount: int = 0
    duration_ns: int = 0
    largest: float = 0.0
    smallest: float | None = None

    def add(self, amounts: Sequence[int | None], durations_ns: Sequence[int]) -> None:
        known = [
            (amount, duration_ns)
            for amount, duration_ns in zip(amounts, durations_ns, strict=True)
            if amount is not None and duration_ns > 0
        ]
        if not known:
            return
        speeds = [amount / duration_ns for amount, duration_ns in known]
        self.amount += sum(amount for amount, _ in known)
        self.duration_ns += sum(duration_ns for _, duration_ns in known)
        self.largest = max(self.largest, *speeds)
        self.smallest = min(speeds) if self.smallest is None else min(self.smallest, *speeds)

    def to_spread(self) -> Spread | None:
        if self.smallest is None:
            return None
        ns_per_s = s_to_ns(1)
        average = self.amount / self.duration_ns
        return Spread(average * ns_per_s, self.largest * ns_per_s, self.smallest * ns_per_s)


class _Sums(msgspec.Struct):
    """The sums over a range of steps."""

    steps: int = 0
    reader: _Cost = msgspec.field(default_factory=_Cost)
    batch: _Cost = msgspec.field(default_factory=_Cost)
    step_speed: _Speed = msgspec.field(default_factory=_Speed)
    samples: _Speed = msgspec.field(default_factory=_Speed)
    tokens: _Speed = msgspec.field(default_factory=_Speed)

    def add(self, rows: Sequence[_Row]) -> None:
        if not rows:
            return
        durations_ns, data_ns, samples, tokens = zip(*rows, strict=True)
        self.steps += len(rows)
        self.reader.add(data_ns)
        self.batch.add(durations_ns)
        self.step_speed.add([1] * len(rows), durations_ns)
        self.samples.add(samples, durations_ns)
        self.tokens.add(tokens, durations_ns)

    def to_throughput(self) -> Throughput | None:
        steps_per_s = self.step_speed.to_spread()
        if steps_per_s is None:
            return None
        return Throughput(
            steps=self.steps,
            duration_s=ns_to_s(self.batch.total_ns),
            reader_cost_s=self.reader.to_spread(self.steps),
            batch_cost_s=self.batch.to_spread(self.steps),
            reader_ratio=self.reader.total_ns / self.batch.total_ns,
            steps_per_s=steps_per_s,
            samples_per_s=self.samples.to_spread(),
            tokens_per_s=self.tokens.to_spread(),
        )
