"""Keep consecutive simple steps as the times of their events, and build their records on demand.

Building records takes longer than matching simple steps, so it is left to the agent thread.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, overload

from rankscope.agent.steps.batch_size import BatchSize
from rankscope.measure.records import StepRecord

EVENTS_PER_STEP: Final = 6
"""Hook events of a simple step, after the one at which it begins."""


class StepRun:
    """Consecutive steps from `first_step` on. `times_ns` are the begin of the first and then EVENTS_PER_STEP of each,
    in the order of `simple_steps.py`; `sizes` those of their batches.
    """

    __slots__ = ("_records", "first_step", "sizes", "times_ns")

    def __init__(self, first_step: int, times_ns: Sequence[int], sizes: Sequence[BatchSize]) -> None:
        self.first_step = first_step
        self.times_ns = times_ns
        self.sizes = sizes
        self._records: list[StepRecord] | None = None

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.sizes)

    @property
    def end_host_ns(self) -> int:
        """The end of the last step."""
        return self.times_ns[-1]

    def to_records(self) -> list[StepRecord]:
        """Return the records of the steps, built at the first call."""
        if self._records is None:
            self._records = self._build_records()
        return self._records

    def _build_records(self) -> list[StepRecord]:
        begins_ns, *events_ns = (self.times_ns[place:-1:EVENTS_PER_STEP] for place in range(EVENTS_PER_STEP))
        ends_ns = self.times_ns[EVENTS_PER_STEP::EVENTS_PER_STEP]
        return [
            StepRecord(
                step=step,
                start_host_ns=begin_ns,
                duration_ns=end_ns - begin_ns,
                phases_ns={
                    "data": data_ns - begin_ns,
                    "forward": forward_ns - data_ns,
                    "backward": backward_ns - forward_ns,
                    "optimizer": optimizer_ns - between_ns,
                    "other": between_ns - backward_ns + end_ns - optimizer_ns,
                },
                batches=1,
                backwards=1,
                samples=size.samples,
                tokens=size.tokens,
            )
            for step, size, begin_ns, data_ns, forward_ns, backward_ns, between_ns, optimizer_ns, end_ns in zip(
                range(self.first_step, self.first_step + len(self)),
                self.sizes,
                begins_ns,
                *events_ns,
                ends_ns,
                strict=True,
            )
        ]


def emit_each(on_record: Callable[[StepRecord], None]) -> Callable[[StepRun], None]:
    """Return a function that calls `on_record` for each step of a run."""

    def on_run(run: StepRun) -> None:
        for record in run.to_records():
            on_record(record)

    return on_run


Steps = StepRecord | StepRun
"""One step, or consecutive ones."""


def count_steps(steps: Steps) -> int:
    """Return the number of steps."""
    return len(steps) if isinstance(steps, StepRun) else 1


class LazyRecords(Sequence[StepRecord]):
    """The records of all these steps, in order, built at the first access."""

    def __init__(self, steps: Sequence[Steps] = ()) -> None:
        self._steps = steps
        self._records: list[StepRecord] | None = None

    def __len__(self) -> int:
        """Return the number of steps, without building records."""
        return sum(map(count_steps, self._steps))

    @overload
    def __getitem__(self, place: int) -> StepRecord: ...
    @overload
    def __getitem__(self, place: slice) -> list[StepRecord]: ...
    def __getitem__(self, place: int | slice) -> StepRecord | list[StepRecord]:
        """Return a record, or a list of them."""
        return self._build()[place]

    def __iter__(self) -> Iterator[StepRecord]:
        """Iterate over the records."""
        return iter(self._build())

    def _build(self) -> list[StepRecord]:
        if self._records is None:
            records: list[StepRecord] = []
            for steps in self._steps:
                records += steps.to_records() if isinstance(steps, StepRun) else [steps]
            self._records, self._steps = records, records
        return self._records
