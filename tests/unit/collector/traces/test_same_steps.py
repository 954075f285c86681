"""Records of different steps are not matched, and what the offset of two clocks may be wrong by."""

from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from rankscope.collector.traces.clock_offsets import find_offset_bound
from rankscope.collector.traces.cross_rank import RankCollectives, match
from rankscope.collector.traces.same_steps import GroupRecord, find_period
from rankscope.measure.traced_collectives import Collective

US = 1_000
MS = 1_000_000
S = 1_000_000_000
NOW_NS = 1_790_000_000 * S


class Job(NamedTuple):
    """Truth of a made run: when each collective begins, by the true time, and the number of its step."""

    starts_ns: list[int]
    steps: list[int]


def job(step_count: int, *, per_step: int = 4, jitter_ns: int = 0, seed: int = 1) -> Job:
    """Return a run of 100 ms a step with collectives every 20 ms, each up to `jitter_ns` later."""
    chance = Random(seed)
    at_ns, starts, steps = NOW_NS, [], []
    for step in range(step_count):
        starts += [at_ns + place * 20 * MS + chance.randint(0, jitter_ns) for place in range(per_step)]
        steps += [step] * per_step
        at_ns += 100 * MS + chance.randint(0, jitter_ns)
    return Job(starts, steps)


def record(
    rank: int, run: Job, first: int, end: int, *, host: str = "a", ahead_ns: int = 0, numbered: bool = True
) -> RankCollectives:
    """Return what a rank records of the collectives from `first` to `end`; its clock is `ahead_ns`."""
    made = [
        Collective("0", 2, None, "all_reduce", None, 64, None, start_ns + ahead_ns, MS)
        for start_ns in run.starts_ns[first:end]
    ]
    return RankCollectives(rank, host, made, steps=run.steps[first:end] if numbered else ())


def refusal(*ranks: RankCollectives) -> str:
    return match(ranks, len(ranks)).refused or ""


REGULAR, IRREGULAR = job(60), job(60, jitter_ns=9 * MS)


# -- step numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [1, 4, 8, 200])
@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("run", [REGULAR, IRREGULAR], ids=["regular", "irregular"])
def test_records_that_begin_apart_are_refused(run: Job, hosts: str, apart: int) -> None:
    # One collective, one step, two steps, fifty steps later.
    first = record(0, run, 0, 12, host=hosts[0])
    other = record(1, run, apart, apart + 12, host=hosts[1])
    assert "different" in refusal(first, other)


def test_steps_0_to_2_are_not_aligned_with_steps_50_to_52() -> None:
    matching = match([record(0, REGULAR, 0, 12), record(1, REGULAR, 200, 212, host="b")], 2)
    assert matching.refused == (
        "the traces are of different steps, or collectives are missing in one: what would be one collective was "
        "launched in step 0 on rank 0, in step 50 on rank 1"
    )


@pytest.mark.parametrize("ahead_ns", [0, 5 * S, -5 * S])
def test_equal_step_numbers_relate_clocks_of_two_hosts(ahead_ns: int) -> None:
    other = record(1, REGULAR, 0, 12, host="b", ahead_ns=ahead_ns)
    assert match([record(0, REGULAR, 0, 12), other], 2).offsets_ns == {0: 0, 1: ahead_ns}


def test_equal_step_numbers_of_two_runs_are_refused() -> None:
    later = record(1, REGULAR, 0, 12, host="b", ahead_ns=3600 * S)
    assert refusal(record(0, REGULAR, 0, 12), later) == (
        "the ranks leave the same collectives 3,600 s apart by their hosts' clocks: the traces are of different steps "
        "or runs"
    )


def test_record_that_ends_earlier_is_of_the_same_steps() -> None:
    assert refusal(record(0, REGULAR, 0, 12), record(1, REGULAR, 0, 9, host="b")) == ""


def test_lost_first_collective_of_a_single_step_is_no_evidence() -> None:
    assert "nothing shows" in refusal(record(0, REGULAR, 0, 4), record(1, REGULAR, 1, 4, host="b", ahead_ns=S))


def test_thread_of_a_cpu_may_start_in_the_next_step() -> None:
    first, other = (record(rank, REGULAR, 0, 12)._replace(on_host=True) for rank in (0, 1))
    late = [*other.steps]
    late[3] = 1  # the last of step 0
    assert refusal(first, other._replace(steps=late)) == ""
    assert refusal(first._replace(on_host=False), other._replace(on_host=False, steps=late)) != ""


# -- without step numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [1, 4, 8, 200])
@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("run", [REGULAR, IRREGULAR], ids=["regular", "irregular"])
def test_without_step_numbers_records_apart_are_refused(run: Job, hosts: str, apart: int) -> None:
    first = record(0, run, 0, 12, host=hosts[0], numbered=False)
    assert refusal(first, record(1, run, apart, apart + 12, host=hosts[1], numbered=False))


def test_one_clock_needs_no_step_numbers() -> None:
    assert refusal(*(record(rank, REGULAR, 0, 12, numbered=False) for rank in (0, 1))) == ""


def test_collective_apart_within_the_limit_is_seen_on_one_clock() -> None:
    dense = Job([NOW_NS + place * MS for place in range(40)], [0] * 40)  # 1 ms apart, 2 ms are allowed
    first, other = record(0, dense, 0, 20, numbered=False), record(1, dense, 1, 21, numbered=False)
    assert "end closest together when those of one rank are shifted by 1:" in refusal(first, other)


@pytest.mark.parametrize(("ahead_ns", "refused"), [(3 * MS, False), (200 * MS, True)])
def test_clocks_of_hosts_tell_steps_of_seconds_apart(ahead_ns: int, refused: bool) -> None:
    slow = Job([NOW_NS + place * S for place in range(6)], [])
    first = record(0, slow, 0, 6, numbered=False)
    assert bool(refusal(first, record(1, slow, 0, 6, host="b", ahead_ns=ahead_ns, numbered=False))) is refused


def test_clocks_of_hosts_do_not_tell_short_steps_apart() -> None:
    ranks = (record(rank, REGULAR, 0, 12, host="ab"[rank], numbered=False) for rank in (0, 1))
    assert "closer than the clocks of two hosts can be told apart" in refusal(*ranks)


def test_irregular_sequence_relates_clocks_of_any_distance() -> None:
    first = record(0, IRREGULAR, 0, 24, numbered=False)
    other = record(1, IRREGULAR, 0, 24, host="b", ahead_ns=5 * S, numbered=False)
    assert match([first, other], 2).offsets_ns == {0: 0, 1: 5 * S}


def test_sequence_of_few_collectives_shows_nothing() -> None:
    first = record(0, IRREGULAR, 0, 6, numbered=False)
    assert "too few or too regular" in refusal(
        first, record(1, IRREGULAR, 0, 6, host="b", ahead_ns=5 * S, numbered=False)
    )


def test_two_groups_on_three_hosts_are_proved_along_the_chain() -> None:
    def pair(rank: int, ranks: str, host: str) -> RankCollectives:
        mine = record(rank, REGULAR, 0, 12, host=host)
        return mine._replace(collectives=[_with_ranks(one, ranks) for one in mine.collectives])

    middle, more = pair(1, "[0, 1]", "b"), pair(1, "[1, 2]", "b")
    both = middle._replace(collectives=[*middle.collectives, *more.collectives], steps=[*middle.steps, *more.steps])
    assert refusal(pair(0, "[0, 1]", "a"), both, pair(2, "[1, 2]", "c")) == ""


def _with_ranks(one: Collective, ranks: str) -> Collective:
    return Collective(one.group, 2, ranks, one.op, None, one.bytes, None, one.start_ns, one.duration_ns)


def group_record(ends_ns: list[int], kinds: str) -> GroupRecord:
    ends = np.array(ends_ns, dtype=np.int64)
    return GroupRecord(0, "a", False, ends, [(kind, 1) for kind in kinds], [None] * len(ends_ns), numbered=False)


@pytest.mark.parametrize(
    ("ends_ns", "kinds", "period_ns"),
    [
        ([5], "a", 0),  # one alone
        ([0, 7, 10], "abc", 3),  # too few to show one: the shortest distance
        ([0, 1, 10, 11, 20, 21, 30, 31], "abababab", 10),
        ([0, 1, 2, 3, 4, 5, 6, 7], "abcdefgh", None),  # equal distances, other operations
    ],
)
def test_period_is_that_after_which_a_record_fits_itself(ends_ns: list[int], kinds: str, period_ns: int | None) -> None:
    assert find_period(group_record(ends_ns, kinds), 0) == period_ns


# -- bounds -----------------------------------------------------------------------------------------------------------


def made_case(seed: int) -> tuple[list[RankCollectives], list[int]]:
    """Return the records of 2 to 4 hosts, and the true offset of each clock. Ranks enter up to 3 ms late, and leave up
    to 400 us after the bytes are there, one of them always late: ends alone would not show that.
    """
    chance = Random(seed)
    run = job(3, jitter_ns=5 * MS, seed=seed)
    offsets = [0] + [chance.randint(-S, S) for _ in range(chance.randint(1, 3))]
    entries = [[start + chance.randint(0, 3 * MS) for _ in offsets] for start in run.starts_ns]
    habit = [chance.randint(0, 300 * US) for _ in offsets]
    ranks = []
    for rank, offset in enumerate(offsets):
        made = []
        for entered in entries:
            left = max(entered) + 50 * US + habit[rank] + chance.randint(0, 100 * US)
            start = entered[rank]
            made.append(Collective("0", 2, None, "all_reduce", None, 64, None, start + offset, left - start))
        ranks.append(RankCollectives(rank, f"host{rank}", made, steps=run.steps))
    return ranks, offsets


def test_bounds_contain_the_true_offsets_in_100_of_100_cases() -> None:
    contained = 0
    for seed in range(100):
        ranks, truth = made_case(seed)
        matching = match(ranks, len(ranks))
        assert matching.refused is None, seed
        found: dict[int | None, int] = {one.rank: matching.offsets_ns[one.rank] for one in ranks}
        bound_ns = find_offset_bound(matching.matched, found, {one.rank: one.host for one in ranks})
        assert bound_ns is not None
        wrong = [
            abs((found[a] - found[b]) - (truth[a] - truth[b])) for a in range(len(truth)) for b in range(len(truth))
        ]
        contained += max(wrong) <= bound_ns < 2 * MS
    assert contained == 100
