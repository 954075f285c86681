"""Laws of when a peak was reached: whatever comes while the allocator is read, and however late steps are reported."""

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from rankscope.agent.sample.torch_memory import PeakSteps

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("need shortly", "allocate")), st.integers(1, 50)),
        st.tuples(st.just("report"), st.integers(1, 3)),
        st.tuples(st.sampled_from(("end step", "begin reading", "read", "end reading", "reset")), st.just(0)),
    ),
    max_size=80,
)
READING = [("begin reading", 0), ("read", 0), ("end reading", 0)]
STEP_WITH_PEAK = [("need shortly", 5), ("end step", 0)]


@dataclass
class Rank:
    """A rank whose every action takes 1 ns. `levels` are the allocated bytes by time, `allocated` those that stay,
    `ends` the times at which its steps ended.
    """

    found: PeakSteps = field(default_factory=PeakSteps)
    levels: list[int] = field(default_factory=lambda: [0])
    allocated: int = 0
    ends: list[int] = field(default_factory=list)
    reported: int = 0
    peak: int = 0
    begun_ns: int | None = None
    read: int | None = None
    known_peak: int | None = None

    def act(self, action: str, amount: int) -> None:
        now_ns = len(self.levels)
        if action == "allocate":
            self.allocated = amount
        self.levels.append(max(self.allocated, amount) if action == "need shortly" else self.allocated)
        self.peak = max(0 if action == "reset" else self.peak, self.levels[-1])
        if action == "end step":
            self.ends.append(now_ns)
        elif action == "begin reading" and self.begun_ns is None:
            self.begun_ns = now_ns
        elif action == "read" and self.begun_ns is not None:
            self.read = self.peak
        elif action == "end reading" and self.begun_ns is not None and self.read is not None:
            self.found.add_reading(self.begun_ns, now_ns, self.read)
            self.known_peak, self.begun_ns, self.read = self.read, None, None
        elif action == "report" and self.begun_ns is None:
            steps = range(self.reported, min(self.reported + amount, len(self.ends)))
            self.found.add_ends([(step, self.ends[step]) for step in steps])
            self.reported = steps.stop


@given(actions=ACTIONS)
@example(actions=[*READING[:2], *STEP_WITH_PEAK, READING[2], ("report", 1), *READING])  # after the first is read
@example(actions=[READING[0], ("end step", 0), STEP_WITH_PEAK[0], *READING[1:], ("report", 1)])  # before it is read
@example(
    actions=[*STEP_WITH_PEAK, *READING, ("end step", 0), ("report", 2), ("reset", 0), ("need shortly", 3), *READING]
)
def test_peak_was_there_between_the_ends_of_the_steps_named(actions: list[tuple[str, int]]) -> None:
    rank = Rank()
    for action in actions:
        rank.act(*action)
        if rank.known_peak is None:
            assert (rank.found.after_step, rank.found.by_step) == (None, None)
            continue
        after, by = rank.found.after_step, rank.found.by_step
        begin_ns = 0 if after is None else rank.ends[after]
        end_ns = len(rank.levels) if by is None else rank.ends[by]
        assert rank.known_peak in rank.levels[begin_ns : end_ns + 1]
