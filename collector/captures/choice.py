"""Choose the ranks of a capture, and read how fast they train, from the state of their run. Pure.

Of the slowest rank alone little can be said: it is captured with its healthiest peer, which does the same work, and
with a neighbor on its node, which shares its machine.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rankscope.collector.captures.capture import ALL, SLOWEST, Around, CaptureRefusal, CaptureRequest
from rankscope.collector.captures.orders import AskedRank, Pace
from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.healthy_peer import choose_peer, read_own_times
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.run import RunState
from rankscope.collector.steps.rank_medians import RankMedians
from rankscope.measure.capture_limits import CAPTURE_OPTIONS, CAPTURE_STEPS_MAX

NOT_POSSIBLE: Final = 422
RANKS_FORMS: Final = f'a list of rank numbers such as [3, 7], {{"around": 3}}, {SLOWEST!r} or {ALL!r}'


def choose_ranks(
    request: CaptureRequest, run: RunState, ranks_max: int
) -> tuple[tuple[AskedRank, ...], Pace] | CaptureRefusal:
    """Return the ranks to ask and how fast they train, or why there is no capture."""
    attempt = run.attempt
    live = list_live(attempt)
    if attempt is None or not live:
        return CaptureRefusal(NOT_POSSIBLE, f"no rank of the run {run.run!r} reports; a capture needs a running one")
    mistake = find_mistake(request)
    if mistake:
        return CaptureRefusal(NOT_POSSIBLE, mistake)
    chosen = _choose_numbers(request.ranks, attempt, live, run.open_findings)
    if isinstance(chosen, CaptureRefusal):
        return chosen
    if len(chosen) > ranks_max:
        text = f"{len(chosen)} ranks are asked for; capture_ranks_max is {ranks_max}. Name fewer, or 'slowest'"
        return CaptureRefusal(NOT_POSSIBLE, text)
    pace = read_pace(attempt, live, chosen)
    if pace is None:
        return CaptureRefusal(NOT_POSSIBLE, "no step has been reported yet; ask again after the first steps")
    asked = tuple(AskedRank(one, live[one].identity.node, live[one].identity.boot_id) for one in chosen)
    return asked, pace


def find_mistake(request: CaptureRequest) -> str:
    """Return what is wrong with the steps or options of a request, with the cure; empty where nothing is.

    >>> find_mistake(CaptureRequest(run="bert", steps=0))
    'steps is 0; it must be from 1 to 100'
    """
    if not 1 <= request.steps <= CAPTURE_STEPS_MAX:
        return f"steps is {request.steps}; it must be from 1 to {CAPTURE_STEPS_MAX}"
    unknown = set(request.options) - set(CAPTURE_OPTIONS)
    names = ", ".join(sorted(CAPTURE_OPTIONS))
    return f"there is no option {', '.join(sorted(unknown))}; there are {names}" if unknown else ""


def _choose_numbers(
    wanted: tuple[int, ...] | Around | str, attempt: Attempt, live: Mapping[int, RankState], findings: Iterable[Finding]
) -> tuple[int, ...] | CaptureRefusal:
    if wanted == ALL:
        return tuple(sorted(live))
    if wanted == SLOWEST:
        return _choose_around(find_slowest(findings, attempt.medians, live), attempt, live)
    if not isinstance(wanted, Around) and (isinstance(wanted, str) or not wanted):
        return CaptureRefusal(NOT_POSSIBLE, f"ranks is {wanted[:80]!r}; it must be {RANKS_FORMS}")
    numbers = {wanted.around} if isinstance(wanted, Around) else set(wanted)
    missing = sorted(numbers - set(live))
    if missing:
        return CaptureRefusal(
            NOT_POSSIBLE, f"rank {missing[0]} does not report; the run has {attempt.world_size} ranks"
        )
    return _choose_around(wanted.around, attempt, live) if isinstance(wanted, Around) else tuple(sorted(numbers))


def find_slowest(findings: Iterable[Finding], medians: RankMedians, live: Mapping[int, RankState]) -> int:
    """Return the rank of the costliest open finding that names a live one, else the one with the longest own time,
    else the lowest.
    """
    named = [one for one in findings if one.rank in live]
    if named:
        costliest = max(named, key=lambda one: one.lost_rank_seconds or 0.0)
        return next(rank for rank in costliest.ranks if rank in live)
    own_ns = read_own_times(medians)
    return max(sorted(live), key=lambda rank: own_ns.get(rank, 0.0))


def choose_beside(
    slowest: int, medians: RankMedians, works: Iterable[tuple[int, ...]], nodes: Mapping[int, str]
) -> tuple[int, ...]:
    """Return the slowest rank, its healthiest peer (the one whose own time is in the middle of those with the same
    work), and the nearest other rank on its node; fewer where there are none. `nodes` has the node of each live rank.

    >>> medians = RankMedians((0, 1, 2, 3), {"own_ns_median": (5.0, 6.0, 9.0, 7.0)})
    >>> choose_beside(2, medians, [(0, 1, 2, 3)], {0: "a", 1: "a", 2: "b", 3: "b"})
    (1, 2, 3)
    """
    peer = choose_peer((slowest,), medians, works, nodes)
    near = [rank for rank in nodes if nodes[rank] == nodes[slowest] and rank not in {slowest, peer}]
    neighbor = min(near, key=lambda rank: (abs(rank - slowest), rank), default=None)
    return tuple(sorted(rank for rank in (slowest, peer, neighbor) if rank is not None))


def choose_around(rank: int, run: RunState) -> tuple[int, ...]:
    """Return a rank of a run with those that `choose_beside` puts beside it; empty where it does not report."""
    live = list_live(run.attempt)
    return () if run.attempt is None or rank not in live else _choose_around(rank, run.attempt, live)


def _choose_around(rank: int, attempt: Attempt, live: Mapping[int, RankState]) -> tuple[int, ...]:
    nodes = {number: one.identity.node for number, one in live.items()}
    return choose_beside(rank, attempt.medians, attempt.peer_search.works, nodes)


def list_live(attempt: Attempt | None) -> dict[int, RankState]:
    """Return the ranks that report, by number. The state thread may add ranks meanwhile."""
    return {} if attempt is None else {number: one for number, one in list(attempt.ranks.items()) if one.is_live}


def read_pace(attempt: Attempt, live: Mapping[int, RankState], chosen: tuple[int, ...]) -> Pace | None:
    """Return how fast the chosen ranks train; None while no step, or no time of one, is known:
    after a restart of the collector that takes a report.
    """
    last_steps = [step for rank in chosen if (step := live[rank].last_step) is not None]
    if not last_steps:
        return None
    medians = [step_ns for rank in chosen if (step_ns := attempt.medians.step_ns_median(rank)) is not None]
    step_ns = min(medians) if medians else attempt.step_ns / (max(last_steps) + 1)
    interval_ns = max(live[rank].hello.report_interval_ns for rank in chosen)
    return Pace(max(last_steps), step_ns, interval_ns) if step_ns > 0.0 else None
