"""The laws of the search for the rank that keeps the others waiting."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.hangs.detector import Hangs
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import END_REASONS
from rankscope.measure.nccl_inspector import InspectorCommunicator
from rankscope.measure.nccl_ras import RAS_STATES, RasCommunicator, RasRank
from rankscope.measure.node_messages import InspectorRead, RankUnresponsive, RasAnswered
from rankscope.measure.stalls import ACTIVITIES, GroupStatus, PendingCollective, Stall
from tests.unit.collector.detect.hang_states import NOW_NS, view_on

S = 1_000_000_000
RANKS = 6
GROUPS = {"default_pg": (0, 1, 2, 3, 4, 5), "a": (0, 1, 2), "b": (2, 3), "c": (3, 4, 5), "#3": (0, 5)}
OPS = ("all_reduce", "broadcast", "all_gather", "", "send 0->1", "recv 1<-0", "recv", "send 0->9")

counters = st.none() | st.integers(0, 4)
times = st.none() | st.integers(-100, 100).map(lambda seconds: NOW_NS + seconds * S)
durations = st.none() | st.integers(0, 500).map(lambda seconds: seconds * S)
statuses = st.builds(
    GroupStatus, group=st.sampled_from(sorted(GROUPS)), enqueued=counters, started=counters, completed=counters
)
progresses = st.lists(statuses, max_size=4, unique_by=lambda status: status.group).map(tuple)
calls = st.builds(
    PendingCollective,
    group=st.sampled_from(sorted(GROUPS)),
    op=st.sampled_from(OPS),
    sequence=st.integers(0, 5),
    age_ns=st.just(S),
    bytes=st.none() | st.integers(0, 2),
)
pendings = st.lists(calls, max_size=3).map(tuple)
stalls = st.builds(
    Stall,
    number=st.just(1),
    since_host_ns=st.just(0),
    taken_host_ns=st.just(0),
    limit_ns=st.just(30 * S),
    activity=st.sampled_from(ACTIVITIES),
    pending=pendings,
    absent=st.sampled_from([{}, {"pending": "no recorder"}]),
)
IDENTITY = RankIdentity(
    run="law", rank=0, local_rank=0, world_size=RANKS, node="n", restart_count=0, boot_id="boot-of-it", pid=7
)
views_from_outside = st.builds(
    RankUnresponsive,
    sequence=st.just(1),
    identity=st.just(IDENTITY),
    host_ns=st.just(0),
    since_host_ns=st.just(0),
    progress=progresses,
    pending=pendings,
)
hang_states = st.builds(
    RankHangState,
    ended=st.none() | st.sampled_from([*END_REASONS, "silent"]),
    ended_collector_ns=times,
    failed_collector_ns=st.none(),
    is_stalled=st.none() | st.booleans(),
    stalled_ns=durations,
    since_collector_ns=times,
    last_step=st.none() | st.integers(0, 9),
    progress=progresses,
    stall=st.none() | stalls,
    unresponsive=st.none() | views_from_outside,
)
ras_ranks = st.builds(
    RasRank,
    communicator_rank=st.integers(0, RANKS),
    state=st.sampled_from(RAS_STATES) | st.text(max_size=3),
    pid=st.none() | st.integers(0, 9),
    rank=st.none() | st.integers(0, RANKS),
    launched=st.none() | st.integers(0, 9),
)
answers = st.builds(
    RasAnswered,
    sequence=st.just(1),
    identity=st.just(IDENTITY),
    host_ns=st.integers(-9, 9),
    stalled_since_host_ns=st.integers(-9, 9),
    communicators_total=st.none() | st.integers(0, 3),
    communicators=st.lists(
        st.builds(RasCommunicator, name=st.just("ab"), ranks=st.lists(ras_ranks, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    is_own=st.none() | st.booleans(),
)
communicators = st.builds(
    InspectorCommunicator,
    id=st.sampled_from(["0xa", "0xb"]),
    size=st.none() | st.integers(0, RANKS),
    last_op=st.sampled_from(["", "AllReduce", "Broadcast"]),
    last_sequence=st.none() | st.integers(0, 3),
)
readings = st.builds(
    InspectorRead,
    sequence=st.just(1),
    identity=st.just(IDENTITY),
    host_ns=st.just(0),
    communicators=st.lists(communicators, max_size=2).map(tuple),
)
dumps = st.dictionaries(st.integers(0, RANKS), readings, max_size=RANKS)
runs = st.dictionaries(st.integers(0, RANKS - 1), hang_states, max_size=RANKS)


def is_inside(rank: RankHangState, group: str, furthest: float) -> bool:
    """Return whether a running rank waits in the group, in the collective that the furthest rank has enqueued."""
    lives = rank.ended is None and bool(rank.is_stalled)
    return lives and any(wait.group == group and wait.sequence >= furthest for wait in rank.waits)


@given(runs)
def test_missing_input_is_harmless_and_front_ranks_are_not_named(
    run: dict[int, RankHangState],
) -> None:
    view = view_on(run, GROUPS, world=RANKS)
    found = Hangs().find(view, ())
    if isinstance(found, Abstain) or not found:
        return
    (candidate,) = found
    finding = candidate.finding
    assert set(finding.ranks) <= set(run)
    assert list(finding.ranks) == sorted(set(finding.ranks))
    for rank in finding.ranks:
        if finding.cause == "dead_rank":
            assert run[rank].is_gone
        elif finding.cause == "silent_rank":
            assert run[rank].is_silent
        else:
            assert not run[rank].is_gone
        is_of_group = finding.cause != "unmatched_transfer"  # of which both ends are named
        if finding.group is not None and "sequence" in finding.evidence and is_of_group:
            assert not is_inside(run[rank], finding.group, finding.evidence["group_max_sequence"])


@given(runs)
def test_a_hang_that_was_just_found_has_not_passed(run: dict[int, RankHangState]) -> None:
    view = view_on(run, GROUPS, world=RANKS)
    found = Hangs().find(view, ())
    if isinstance(found, Abstain) or not found:
        return
    assert not Hangs().has_passed(view, found[0].finding, ())


@given(runs, runs)
def test_changing_hang_has_one_finding_or_the_old_one_passed(
    before: dict[int, RankHangState], after: dict[int, RankHangState]
) -> None:
    found = Hangs().find(view_on(before, GROUPS, world=RANKS), ())
    if isinstance(found, Abstain) or not found:
        return
    first, view = found[0].finding, view_on(after, GROUPS, world=RANKS)
    then = Hangs().find(view, [first])
    if isinstance(then, Abstain) or not then:
        return
    assert then[0].finding.is_about_the_same(first) or Hangs().has_passed(view, first, ())


@given(runs, answers, dumps)
def test_whatever_nccl_says_the_verdict_is_the_same(
    run: dict[int, RankHangState], answered: RasAnswered, read: dict[int, InspectorRead]
) -> None:
    view = view_on(run, GROUPS, world=RANKS)
    alone, found = Hangs().find(view, ()), Hangs().find(replace(view, ras=answered, dumps=read), ())
    if isinstance(alone, Abstain) or isinstance(found, Abstain) or not alone:
        assert found == alone
        return
    without, with_it = alone[0].finding, found[0].finding
    assert (with_it.cause, with_it.ranks, with_it.group) == (without.cause, without.ranks, without.group)
    assert with_it.is_about_the_same(without)
