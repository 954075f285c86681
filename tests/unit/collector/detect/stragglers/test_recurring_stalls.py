"""Ranks that stop now and then, from hand-written long steps: usual steps of 20 ms, stalls of 400."""

from collections.abc import Sequence

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.stragglers.recurring_stalls import (
    LARGE_COUNT,
    STALLS,
    Recurring,
    describe_recurring,
    find_recurring,
    find_stall_cause,
)
from rankscope.collector.detect.view import Samples, SingleLosses, TimeCount
from rankscope.collector.steps.long_steps import EVERYBODY, UNKNOWN, LongStepsSeen, RareLongStep
from rankscope.measure.records import CompiledFrame, SavedLine
from tests.unit.collector.steps.step_series import MS, series_of, view_of

USUAL_MS, STALL_MS = 20.0, 400.0


def seen_of(
    owners: dict[int, int], until: int, *, ms: dict[int, float] | None = None, cpu_ms: float | None = None,
    part: str = "forward",
) -> LongStepsSeen:  # fmt: skip
    """Return the long steps of a run of `until` steps: `{step: owner}`, of STALL_MS unless `ms` says otherwise."""
    steps, before_ms = [], 0.0
    for step in range(until):
        if step in owners:
            owned_ms = (ms or {}).get(step, STALL_MS)
            steps.append(
                RareLongStep(
                    step, owners[step], part if owners[step] != UNKNOWN else "", owned_ms * MS,
                    0.0 if owners[step] == UNKNOWN else owned_ms * MS, before_ms * MS, USUAL_MS * MS,
                    None if cpu_ms is None else cpu_ms * MS,
                )
            )  # fmt: skip
            before_ms += owned_ms
        before_ms += USUAL_MS
    return LongStepsSeen(tuple(steps), before_ms * MS)


def every(period: int, until: int, owner: int = 1) -> dict[int, int]:
    return dict.fromkeys(range(period, until, period), owner)


IRREGULAR = (100, 130, 210, 330, 370, 480, 520, 650, 700, 790, 890, 910, 1030, 1120, 1150)


def found_in(seen: LongStepsSeen, ranks: int = 2, known: Sequence[int] = ()) -> list[int]:
    return [one.rank for one in find_recurring(seen, ranks, known)]


def test_large_stalls_are_found_among_many_small_ones_by_noise() -> None:
    # By their number they are a fifth of the long steps, by their time nearly all.
    noise = {step: step % 2 for step in range(37, 4000, 90)}
    owners = {**noise, **every(500, 4000)}
    seen = seen_of(owners, 4000, ms=dict.fromkeys(noise, 12.0))
    (found,) = find_recurring(seen, 2)
    assert (found.rank, found.period, found.is_regular, len(found.stalls)) == (1, 500, True, 7)
    (again,) = find_recurring(seen, 2, (1,))
    assert again == found


def test_stall_every_100_steps_is_found_with_its_share() -> None:
    (found,) = find_recurring(seen_of(every(100, 1000), 1000), 2)
    assert (found.rank, found.period, found.is_regular, found.part) == (1, 100, True, "forward")
    # One distance before step 100 is step 0: 1,000 steps of 20 ms, and 9 stalls of 400.
    assert found.share == pytest.approx(3_600 / 23_600)


@pytest.mark.parametrize("count", [3, 2])
def test_fewer_than_four_stalls_prove_nothing(count: int) -> None:
    assert found_in(seen_of(every(100, 100 * count + 1), 100 * count + 50)) == []


def test_steps_in_a_row_are_one_stall() -> None:
    # A rank that becomes slow for eight steps, or for good, does not stop again and again.
    assert found_in(seen_of(dict.fromkeys(range(100, 108), 1), 200), ranks=16) == []
    bouts = {step: 1 for begin in range(100, 300, 50) for step in range(begin, begin + 8)}
    (found,) = find_recurring(seen_of(bouts, 300), 16)
    assert (found.period, found.is_regular) == (50, True)


def test_irregular_stalls_need_a_proof_by_number_or_size() -> None:
    small = dict.fromkeys(IRREGULAR, 150.0)  # less than ten usual steps
    five = dict.fromkeys(IRREGULAR[:5], 1)
    assert found_in(seen_of(five, 400)) == []
    assert found_in(seen_of(dict.fromkeys(IRREGULAR[:LARGE_COUNT], 1), 550)) == [1]
    assert found_in(seen_of(dict.fromkeys(IRREGULAR[:LARGE_COUNT], 1), 550, ms=small)) == []
    # 2 ^ -15 is less than 1e-4 / 2.
    assert found_in(seen_of(dict.fromkeys(IRREGULAR, 1), 1200, ms=small)) == [1]
    assert found_in(seen_of(five, 400), known=[1]) == [1]


def test_stalls_of_two_ranks_in_turns_are_nobodys() -> None:
    owners = {step: place % 2 for place, step in enumerate(range(100, 1000, 50))}
    assert found_in(seen_of(owners, 1000)) == []


def test_short_noise_of_another_rank_does_not_count() -> None:
    owners = every(100, 1000) | every(70, 1000, owner=0)
    ms = dict.fromkeys(every(70, 1000), 40.0)
    assert found_in(seen_of(owners, 1000, ms=ms | {700: STALL_MS})) == [1]


def test_nobody_is_named_where_most_of_the_time_has_no_owner() -> None:
    owners = every(100, 1000) | every(30, 1000, owner=UNKNOWN)
    assert found_in(seen_of(owners, 1000)) == []


def test_what_everybody_does_does_not_count() -> None:
    assert found_in(seen_of(every(100, 1000) | every(30, 1000, owner=EVERYBODY), 1000)) == [1]


def test_only_three_of_the_stalls_may_be_long() -> None:
    ms = {100: 10.0, 200: 10.0, 300: 10.0}
    seen = seen_of(every(100, 650), 650, ms=ms)  # 400, 500, 600 remain of the class
    assert found_in(seen) == []


def test_stalls_that_cost_little_are_left_alone() -> None:
    assert found_in(seen_of(every(2500, 20_000), 20_000)) == []


def test_stalls_that_have_stopped_are_over() -> None:
    assert found_in(seen_of(every(100, 600), 850)) == [1]
    # 4 of 100 steps and a stall are 9.6 s, 480 usual steps.
    assert found_in(seen_of(every(100, 600), 1100)) == []


def recurring(
    part: str = "forward", cpu_ms: float | None = None, steps: Sequence[int] = tuple(range(100, 1000, 100))
) -> Recurring:
    (found,) = find_recurring(seen_of(dict.fromkeys(steps, 1), 1200, cpu_ms=cpu_ms, part=part), 2)
    return found


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (recurring("data"), "data_loading"),
        (recurring("checkpoint"), "periodic_work"),
        (recurring("other"), "periodic_work"),
        (recurring("other", steps=IRREGULAR), "unattributed"),
        (recurring(), "unattributed"),
        (recurring(cpu_ms=390.0), "host_cpu"),
        (recurring(cpu_ms=30.0), "unseen_wait"),
        (recurring(cpu_ms=210.0), "unattributed"),
    ],
)
def test_cause_is_what_holds_half_of_the_stalls(found: Recurring, cause: str) -> None:
    assert find_stall_cause(found, Samples({}, {}, {})).name == cause


def test_compilation_is_the_cause_where_it_is_as_long() -> None:
    found = recurring()
    frames = [CompiledFrame(step=one.step, frame="train.py:24 (scale)", duration_ns=300 * MS) for one in found.stalls]
    cause = find_stall_cause(found, Samples({}, {}, {}, compiled={found.rank: frames}))
    assert cause[:2] == ("recompilation", "300.0 ms each time in torch.compile, all of it for train.py:24 (scale)")
    few = Samples({}, {}, {}, compiled={found.rank: frames[:1]})
    assert find_stall_cause(found, few).name == "unattributed"


def saved(size: int, lasted_ms: int, call: str = "torch.save") -> tuple[SavedLine, ...]:
    """What a rank saves at one line."""
    return (
        SavedLine(
            call=call, line="train.py:24 (main)", count=4, duration_ns=4 * lasted_ms * MS, last_ns=lasted_ms * MS,
            bytes=4 * size, last_bytes=size,
        ),
    )  # fmt: skip


def test_slow_writer_is_told_with_its_speed_line_and_peers() -> None:
    # 100 MiB in 0.4 s are 250 MiB/s; its peers' in 0.1 s 1,000.
    saves = {1: saved(100 * 2**20, 400), 0: saved(100 * 2**20, 100), 2: saved(90 * 2**20, 90)}
    cause = find_stall_cause(recurring("checkpoint"), Samples({}, {}, {}, saves=saves), (0, 2))
    assert cause.name == "storage"
    where = "torch.save, called at train.py:24 (main)"
    assert cause.because == (
        f"saving a checkpoint: {where}, 100.0 MiB in 400.0 ms (250.0 MiB/s), its peers as much at 1000.0 MiB/s"
    )
    assert cause.evidence == {
        "saved_bytes_per_s": pytest.approx(250 * 2**20),
        "peers_saved_bytes_per_s": pytest.approx(1000 * 2**20),
    }


@pytest.mark.parametrize(
    "other",
    [
        saved(100 * 2**20, 300),  # a third faster
        saved(2**20, 1),  # much less
        saved(100 * 2**20, 100, "torch.distributed.checkpoint.save"),  # another kind
        (),
        None,
    ],
)
def test_save_without_a_faster_peer_is_work_of_its_own(other: tuple[SavedLine, ...] | None) -> None:
    saves = {1: saved(100 * 2**20, 400), 0: other}
    cause = find_stall_cause(recurring("checkpoint"), Samples({}, {}, {}, saves=saves), (0,))
    assert (cause.name, cause.because) == (
        "periodic_work",
        "saving a checkpoint: torch.save, called at train.py:24 (main), 100.0 MiB in 400.0 ms (250.0 MiB/s)",
    )


def test_save_of_unknown_size_has_its_time() -> None:
    line = msgspec.structs.replace(saved(1, 400)[0], bytes=None, last_bytes=None, line="")
    cause = find_stall_cause(recurring("checkpoint"), Samples({}, {}, {}, saves={1: (line,)}), (0,))
    assert cause.because == "saving a checkpoint: torch.save, 400.0 ms the last time"


def test_gc_pauses_are_the_cause_where_they_last_as_long() -> None:
    counts = [TimeCount(150, 0), TimeCount(550, round(4 * 300 * MS))]  # 4 stalls between
    assert find_stall_cause(recurring(), Samples({}, {1: counts}, {})).name == "garbage_collection"
    assert (
        find_stall_cause(recurring(), Samples({}, {1: [counts[0], TimeCount(550, round(700 * MS))]}, {})).name
        == "unattributed"
    )
    assert (
        find_stall_cause(recurring(), Samples({}, {1: [TimeCount(10, 0), TimeCount(20, 0)]}, {})).name == "unattributed"
    )


def test_gc_pauses_between_stalls_are_no_cause() -> None:
    counts = [
        TimeCount(step, round(pause_ms * MS)) for step, pause_ms in ((1, 0), (90, 2000), (105, 2010), (560, 2020))
    ]
    assert find_stall_cause(recurring(), Samples({}, {1: counts}, {})).name == "unattributed"


def describe(found: Recurring, known: Finding | None = None, first_step: int = 0) -> tuple[Finding, SingleLosses]:
    view = view_of(series_of([[USUAL_MS, USUAL_MS]] * 12))
    object.__setattr__(view, "long_steps", LongStepsSeen(found.stalls, 27_600 * MS, first_step))
    finding, lost = describe_recurring(view, found, known)
    assert isinstance(lost, SingleLosses)
    return finding, lost


def test_finding_has_the_stalls_and_their_cost() -> None:
    finding, lost = describe(recurring())
    assert (finding.kind, finding.ranks, finding.pattern, finding.severity) == (
        "straggler",
        (1,),
        "intermittent",
        "warning",
    )
    assert (finding.since_step, finding.since_step_min, finding.since_step_max) == (100, 1, 100)
    assert finding.slowdown_ratio == pytest.approx(21.0)
    # Steps 0 to 1,200 are 27.6 s, of which 9 * 0.4 are lost.
    assert finding.run_slowdown_ratio == pytest.approx(27.6 / 24.0)
    assert finding.evidence[STALLS] == 9.0
    assert (lost.steps.tolist(), lost.lost_ns.tolist()) == ([*range(100, 1000, 100)], [STALL_MS * MS] * 9)
    assert finding.headline == "Rank 1 (node1): 21.0x slower than usual every 100 steps since about step 100 (1-100)"
    assert finding.also == ("9 stalls of 400.0 ms in steps 100-900, all other ranks waiting",)


def test_finding_says_where_the_rank_was_seen() -> None:
    steps = seen_of(every(100, 1000), 1200).steps
    places = [("train.py:52 (main)", "time.sleep")] * 3 + [("train.py:60\n (main)", "")] + [("", "")] * 5
    seen = [one._replace(line=line, call=call) for one, (line, call) in zip(steps, places, strict=True)]
    without_cause = describe(recurring()._replace(stalls=tuple(seen)))[0]
    place = "seen in time.sleep, called at train.py:52 (main), in 3 of 4 looks"
    assert (without_cause.why, without_cause.also[1:]) == (f"{place}, 400.0 ms of it in forward", ())
    slept = tuple(one._replace(cpu_ns=0.0) for one in seen)
    assert describe(recurring()._replace(stalls=slept))[0].also[1:] == (place,)
    apart = tuple(one._replace(line=f"train.py:{one.step} (main)") for one in steps)
    assert len(describe(recurring()._replace(stalls=apart))[0].also) == 1
    once = describe(recurring()._replace(stalls=tuple(seen[3:])))[0].why
    assert once.startswith(r"seen at train.py:60\n (main), once, ")


def test_begin_is_that_of_stalls_of_all_before_ranks_were_looked_at() -> None:
    owners = {**every(100, 1200), 100: EVERYBODY, 200: EVERYBODY}
    (found,) = find_recurring(seen_of(owners, 1200), 2)
    assert (found.stalls[0].step, found.first_step) == (300, 100)


def test_stalls_of_all_ranks_that_were_looked_at_are_of_before_the_begin() -> None:
    seen = seen_of({**every(100, 1200), 100: EVERYBODY, 200: EVERYBODY}, 1200)
    looked_at = tuple(one._replace(is_seen=True) for one in seen.steps)
    (found,) = find_recurring(seen._replace(steps=looked_at), 2)
    assert found.first_step == 300


def test_begin_is_that_of_stalls_whose_owner_is_not_known() -> None:
    owners = {**every(100, 1200), 100: UNKNOWN, 200: UNKNOWN, 60: UNKNOWN}
    (found,) = find_recurring(seen_of(owners, 1200), 2)
    assert (found.stalls[0].step, found.first_step) == (300, 100)
    finding, _ = describe(found)
    assert (finding.since_step, finding.since_step_min) == (100, 1)


def test_open_finding_keeps_its_begin() -> None:
    known = Finding(kind="straggler", ranks=(1,), cause="unattributed", sentence="", since_step=40, since_step_min=35)
    finding, _ = describe(recurring(), known)
    assert (finding.since_step, finding.since_step_min) == (40, 35)
    later = Finding(kind="straggler", ranks=(1,), cause="unattributed", sentence="", since_step=40)
    assert describe(recurring(), later)[0].since_step_min == 40


def test_collector_that_came_later_does_not_know_the_begin() -> None:
    finding, _ = describe(recurring(), first_step=2)
    assert (finding.since_step, finding.since_step_min) == (100, 0)


def test_cheap_work_of_its_own_is_no_warning() -> None:
    steps = tuple(range(1000, 10_000, 1000))
    (cheap,) = find_recurring(seen_of(dict.fromkeys(steps, 1), 10_000, part="other"), 2)
    assert describe(cheap)[0].severity == "info"
    dear = describe(recurring("other"))[0]
    assert (dear.kind, dear.severity) == ("periodic_work", "warning")


def test_irregular_stalls_are_described_so() -> None:
    assert describe(recurring(steps=IRREGULAR))[0].what == "than usual now and then (about every 85 steps)"
