"""Tests of stall detection, on a simulated clock."""

import msgspec

from rankscope.agent.captures.flight_recorder import FlightRecorder
from rankscope.agent.captures.stacks import Stacks
from rankscope.agent.captures.stall_samples import StallSampler
from rankscope.agent.captures.stalls import StallWatch
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import PendingCollective, StackFrame, Stall, StallSamples, ThreadStack
from tests.unit.agent.flight_dumps import CREATED_WALL_NS, Recorder, dump_of, entry_of, status_of

S = 1_000_000_000
STALL_NS = 30 * S
STACKS = Stacks((ThreadStack(name="MainThread", frames=(StackFrame("train.py", 24, "main"),)),), 1, "other")


def step_of(step: int, duration_ns: int) -> StepRecord:
    return StepRecord(step=step, start_host_ns=0, duration_ns=duration_ns, phases_ns={})


RECEIVES = PendingCollective(group="default_pg", op="recv 1<-0", sequence=0, age_ns=31 * S)


class Rank:
    """A rank observed once per second. Its collective 7 was enqueued when its wall clock began. By default its main
    thread is in no receive.
    """

    def __init__(self, *, receives: bool = False, in_store: bool = False, **entry: str) -> None:
        self.dump = Recorder(dump_of(entry_of(0, 7, **entry), g0=status_of(7)))
        recorder = FlightRecorder(dict, GraphCaptures(), {"_dump_fr_trace_json": self.dump})
        self.line = 24
        self.cores = 0
        self.cpu_ns = 0
        frames = lambda: (StackFrame("train.py", self.line, "main"),)  # noqa: E731 - read anew at each sample
        sampler = StallSampler(frames, lambda: self.cpu_ns, lambda: None)
        self.watch = StallWatch(
            STALL_NS,
            recorder,
            capture=lambda: STACKS,
            read_wall_ns=lambda: CREATED_WALL_NS + self.s * S,
            sampler=sampler,
            find_transfer=lambda age_ns: msgspec.structs.replace(RECEIVES, age_ns=age_ns) if receives else None,
            waits_in_store=lambda: in_store,
        )
        self.s = 0
        self.moments = 0

    def train(self, steps: int, step_ns: int = S) -> "Rank":
        for step in range(steps):
            self.s += 1
            self.moments += 8
            assert self.watch.observe(self.s * S, self.moments, [step_of(step, step_ns)]) is None
        return self

    def wait(self, seconds: int) -> list[Stall]:
        """Let time pass without events; return the stalls described meanwhile."""
        found = []
        for _ in range(seconds):
            self.s += 1
            self.cpu_ns += self.cores * S
            stall = self.watch.observe(self.s * S, self.moments, ())
            found += [] if stall is None else [stall]
        return found


def test_rank_without_events_above_the_limit_is_stalled() -> None:
    rank = Rank().train(10)
    assert rank.wait(30) == []
    (stall,) = rank.wait(1)
    # The last moment was seen in second 10.
    assert (stall.since_host_ns, stall.taken_host_ns, stall.limit_ns) == (10 * S, 41 * S, STALL_NS)
    assert (stall.number, stall.last_step, stall.activity, stall.stacks) == (1, 9, "other", STACKS.threads)
    assert [(one.sequence, one.age_ns) for one in stall.pending] == [(7, 41 * S)]
    assert rank.watch.stalled_since_host_ns == 10 * S


def test_slow_steps_have_a_longer_limit() -> None:
    rank = Rank().train(10, step_ns=6 * S)
    assert rank.wait(60) == []  # ten steps of 6 s
    assert len(rank.wait(1)) == 1


def test_limit_is_ten_times_longer_before_the_first_step() -> None:
    rank = Rank()
    rank.watch.observe(0, 1, ())
    rank.moments = 1
    assert rank.wait(300) == []
    (stall,) = rank.wait(1)
    assert (stall.last_step, stall.limit_ns) == (None, 300 * S)


def test_events_without_steps_are_no_stall() -> None:
    # An evaluation: batches are fetched, no step ends.
    rank = Rank().train(10)
    for _ in range(100):
        rank.s += 1
        rank.moments += 2
        assert rank.watch.observe(rank.s * S, rank.moments, ()) is None


def test_steps_without_events_are_no_stall() -> None:
    # A loop that only calls `rankscope.agent.step()`.
    rank = Rank().train(10)
    for step in range(100):
        rank.s += 1
        assert rank.watch.observe(rank.s * S, rank.moments, [step_of(step, S)]) is None


def test_call_without_a_torch_frame_is_told_as_wait_in_the_store() -> None:
    (stall,) = Rank(in_store=True).train(10).wait(31)
    assert stall.activity == "store"
    (stall,) = Rank(in_store=True, receives=True).train(10).wait(31)
    assert stall.activity == "collective"


def test_stall_ends_with_the_next_event() -> None:
    rank = Rank().train(10)
    rank.wait(31)
    rank.train(1)
    assert rank.watch.stalled_since_host_ns is None
    assert [stall.number for stall in rank.wait(31)] == [2]


def test_stall_is_described_again_every_minute() -> None:
    stalls = Rank().train(10).wait(31 + 60 * 5)
    assert [stall.taken_host_ns // S for stall in stalls] == [41 + 60 * number for number in range(6)]
    assert {stall.number for stall in stalls} == {1}


def test_stall_has_samples_of_the_second_half_of_its_limit() -> None:
    rank = Rank().train(10)
    (stall,) = rank.wait(31)
    # In seconds 26 to 41.
    frame = StackFrame("train.py", 24, "main")
    assert stall.samples == StallSamples(count=16, span_ns=15 * S, changes=0, cpu_ns=0, frame=frame)
    assert not stall.is_busy


def test_samples_begin_anew_after_an_event() -> None:
    rank = Rank().train(10)
    rank.wait(31)
    rank.train(1)
    (stall,) = rank.wait(31)
    assert stall.samples is not None
    assert stall.samples.count == 16


def test_one_sample_is_no_description_yet() -> None:
    rank = Rank().train(10)
    rank.s += 60  # reports are a minute apart
    assert rank.watch.observe(rank.s * S, rank.moments, ()) is None
    (stall,) = rank.wait(1)
    assert stall.samples is not None
    assert (stall.samples.count, stall.since_host_ns) == (2, 10 * S)


def test_stall_is_described_when_the_rank_begins_to_work() -> None:
    rank = Rank().train(10)
    (first,) = rank.wait(31)
    rank.cores = 1
    assert rank.wait(30) == []  # at most once in a limit of 30 s
    (second,) = rank.wait(1)
    assert (first.is_busy, second.is_busy, second.number) == (False, True, 1)
    # It stands from second 73 on. The samples of 72 to 102 show no work; one limit after 72 has passed in second 103.
    rank.cores = 0
    (third,) = rank.wait(31)
    assert (third.is_busy, third.taken_host_ns) == (False, 103 * S)


def test_receive_that_is_not_recorded_is_pending_too() -> None:
    (stall,) = Rank(receives=True).train(10).wait(31)
    assert stall.activity == "collective"  # by its stack it is in a line of the script
    assert [(one.op, one.sequence, one.age_ns) for one in stall.pending] == [
        ("all_reduce", 7, 41 * S), ("recv 1<-0", 0, 31 * S),
    ]  # fmt: skip


def test_recorded_receive_is_pending_once() -> None:
    (stall,) = Rank(receives=True, profiling_name="nccl:recv 1<-0").train(10).wait(31)
    assert [(one.op, one.sequence) for one in stall.pending] == [("recv 1<-0", 7)]


def test_recorder_is_dumped_once_without_progress() -> None:
    rank = Rank().train(10)
    stalls = rank.wait(31 + 60)
    assert sum(rank.dump.asked_for_collectives) == 1
    assert [one.age_ns // S for stall in stalls for one in stall.pending] == [41, 101]


def test_recorder_is_dumped_again_after_progress() -> None:
    rank = Rank().train(10)
    rank.wait(31)
    rank.dump.dump = dump_of(entry_of(1, 8), g0=status_of(8))
    (stall,) = rank.wait(60)
    assert [one.sequence for one in stall.pending] == [8]
