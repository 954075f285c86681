"""Ask a rank that is suspected, and one healthy peer, where their training threads are, and compare the answers; one
that grows is asked what it holds more of. Pure.

    tick -> orders to rank processes; take <- their answers; results by the number of the finding

An order is repeated until it is answered by the samples. What cannot be had is asked for again later, a few times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import HANG, PERIODIC_WORK, STRAGGLER, Finding
from rankscope.collector.detect.memory.growth import FASTEST, MEMORY_GROWTH
from rankscope.collector.detect.memory.held_growth import describe_growth
from rankscope.collector.detect.sampled_lines import SampledLines, compare_lines, describe_stalled
from rankscope.collector.invariants import require
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.events import AskSamples
from rankscope.collector.runs.healthy_peer import choose_peer
from rankscope.measure.line_samples import HELD, LONG, NOW, WHOLE
from rankscope.measure.messages import SampleOrder, SamplesTaken
from rankscope.measure.units import NS_PER_MS, NS_PER_S

RANK_KINDS: Final = frozenset({STRAGGLER, PERIODIC_WORK})
"""Kinds of finding about ranks that have a peer."""
RUN_KINDS: Final = frozenset({"data_bound", "host_bound"})
"""Kinds about the whole run whose cause is on the host: one rank is asked."""
NOT_OF_THE_HOST: Final = "gpu_"
"""Begin of causes that no line of the host explains."""
INTERVAL_NS: Final = 50 * NS_PER_MS
"""At 20 ms steps were 2 % longer, at 50 ms by less than was seen, 0.2 % (bench/results/stack_samples.md)."""
LASTS_NS: Final = 6 * NS_PER_S
LONG_STEPS: Final = 3
"""Steps that are sampled where that takes longer than LASTS_NS."""
INTERVALS_MAX: Final = 1000
"""Samples of one order: of long steps they are rarer."""
STEPS_MAX: Final = 512
RARE_LASTS_NS: Final = 600 * NS_PER_S
RARE_STEPS: Final = 3
"""Slow steps that are waited for, where they are rare."""
RARE_RATIO: Final = 1.2
"""A step counts as slow from this multiple of the usual one on."""
HELD_NS: Final = 8 * NS_PER_S
HELD_STEPS: Final = 8
"""Time, and steps at least, between the first and the last look at what a growing process holds."""
STALLED_NS: Final = 3 * NS_PER_S
STALLED_INTERVAL_NS: Final = 20 * NS_PER_MS
STALLED_RANKS_MAX: Final = 32
REPEAT_NS: Final = 3 * NS_PER_S
GIVEN_NS: Final = 20 * NS_PER_S
"""Time for the answers beyond that of the samples."""
AGAIN_NS: Final = 30 * NS_PER_S
TRIES_MAX: Final = 3
SEARCHES_MAX: Final = 64
"""Findings of a run whose searches are remembered."""


class _Asked(NamedTuple):
    rank: int
    boot_id: str


@dataclass(slots=True)
class _Search:
    """The search for one finding: which processes are asked for what, when, and what they have answered by rank."""

    finding: Finding
    asked: tuple[_Asked, ...] = ()
    order: SampleOrder | None = None
    begun_ns: int = 0
    sent_ns: int | None = None
    tries: int = 0
    ended_ns: int | None = None
    is_done: bool = False
    answers: dict[int, SamplesTaken] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        return self.order is not None

    def waits_for(self, now_ns: int) -> tuple[_Asked, ...]:
        """Return the processes whose samples may still come."""
        order = self.order
        if order is None or now_ns - self.begun_ns > order.lasts_ns + GIVEN_NS:
            return ()
        return tuple(one for one in self.asked if one.rank not in self.answers)


class LineSearch:
    """The searches of one run. Written by RunState only."""

    def __init__(self) -> None:
        #: By the number of the finding; at most SEARCHES_MAX.
        self._searches: dict[int, _Search] = {}
        self._orders = 0
        #: What was found since the last call of `pop`, by the number of the finding.
        self._found: dict[int, SampledLines] = {}

    def begin_attempt(self) -> None:
        """Forget everything: other processes train now."""
        self._searches.clear()
        self._found.clear()

    def tick(self, findings: Sequence[Finding], attempt: Attempt, now_ns: int) -> list[AskSamples]:
        """Return the orders that are due, given the findings that hold."""
        held = {one.number: one for one in findings}
        for number in [one for one in self._searches if one not in held]:
            self._conclude_partly(number, now_ns)
            del self._searches[number]
        for number, finding in held.items():
            if is_searched(finding) and (number in self._searches or len(self._searches) < SEARCHES_MAX):
                search = self._searches.setdefault(number, _Search(finding))
                search.finding = finding
                self._advance(search, attempt, now_ns)
        effects: list[AskSamples] = []
        for search in self._searches.values():
            if search.order is not None and (search.sent_ns is None or now_ns - search.sent_ns >= REPEAT_NS):
                search.sent_ns = now_ns
                effects += [AskSamples(one.boot_id, search.order) for one in search.waits_for(now_ns)]
        return effects

    def take(self, rank: int, taken: SamplesTaken) -> None:
        """Take the answer of a rank; one to no order that is on is ignored."""
        for search in self._searches.values():
            order = search.order
            is_final = taken.state in {"taken", "refused"}
            if is_final and order is not None and order.id == taken.id and rank in {one.rank for one in search.asked}:
                search.answers[rank] = taken

    def pop(self) -> Mapping[int, SampledLines]:
        """Return what was found since the last call, by the number of the finding."""
        found, self._found = self._found, {}
        return found

    def _advance(self, search: _Search, attempt: Attempt, now_ns: int) -> None:
        if search.is_on:
            if not search.waits_for(now_ns):
                self._conclude(search, now_ns)
        elif not search.is_done and (search.ended_ns is None or now_ns - search.ended_ns >= AGAIN_NS):
            self._begin(search, attempt, now_ns)

    def _begin(self, search: _Search, attempt: Attempt, now_ns: int) -> None:
        live = {number: one for number, one in attempt.ranks.items() if one.is_live}
        ranks = _choose_ranks(search.finding, attempt, live)
        if not ranks:
            return
        self._orders += 1
        order = _make_order(f"s{self._orders}-{search.finding.number}", search.finding, attempt, ranks[0])
        if order is None:
            return
        search.asked = tuple(_Asked(rank, live[rank].identity.boot_id) for rank in ranks)
        search.order, search.begun_ns, search.sent_ns, search.answers = order, now_ns, None, {}
        search.tries += 1

    def _conclude(self, search: _Search, now_ns: int) -> None:
        found = _compare(search)
        search.order, search.ended_ns = None, now_ns
        search.is_done = (found is not None and found.is_named) or search.tries >= TRIES_MAX
        if found is not None:
            self._found[search.finding.number] = found

    def _conclude_partly(self, number: int, now_ns: int) -> None:
        """Keep what is there of a finding that does not hold any more."""
        search = self._searches[number]
        if search.is_on and search.answers:
            self._conclude(search, now_ns)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(len(self._searches) <= SEARCHES_MAX, "too many searches for lines")
        require(all(one.tries <= TRIES_MAX for one in self._searches.values()), "a search was tried too often")


def is_searched(finding: Finding) -> bool:
    """Return whether a line of the host may explain a finding, or what a process holds."""
    if finding.kind in {HANG, MEMORY_GROWTH}:
        return True
    is_about = finding.kind in RUN_KINDS or (finding.kind in RANK_KINDS and bool(finding.ranks))
    return is_about and not finding.cause.startswith(NOT_OF_THE_HOST)


def find_excess_ns(finding: Finding) -> float:
    """Return by how much a slow step is longer according to a finding about ranks, in ns; 0 where it does not say.

    >>> find_excess_ns(Finding(kind="straggler", cause="", sentence="", evidence={"own_ns": 9, "peers_own_ns": 4}))
    5
    """
    if finding.kind not in RANK_KINDS:
        return 0.0
    known = finding.evidence
    difference_ns = known.get("own_ns", 0.0) - known.get("peers_own_ns", 0.0)
    return max(0.0, known.get("stall_ns", known.get("longer_ns", difference_ns)))


def _choose_ranks(finding: Finding, attempt: Attempt, live: Mapping[int, object]) -> tuple[int, ...]:
    """Return the ranks to ask, the suspected one first."""
    if finding.kind == HANG:
        stalled = sorted(one.identity.rank for one in attempt.stalled_ranks)
        wanted = [*finding.ranks, *(rank for rank in stalled if rank not in finding.ranks)]
        return tuple(rank for rank in wanted if rank in live)[:STALLED_RANKS_MAX]
    if finding.kind in RUN_KINDS:
        return tuple(sorted(live))[:1]
    if finding.kind == MEMORY_GROWTH:
        fastest = round(finding.evidence.get(FASTEST, -1))
        return (fastest,) if fastest in live else ()
    rank = next((rank for rank in finding.ranks if rank in live), None)
    if rank is None:
        return ()
    slow = (rank, *(one for one in finding.ranks if one != rank))
    peer = choose_peer(slow, attempt.medians, attempt.peer_search.works, live)
    return (rank,) if peer is None else (rank, peer)


def _make_order(order_id: str, finding: Finding, attempt: Attempt, rank: int) -> SampleOrder | None:
    """Return what to order; None where it is not known yet how long steps are."""
    if finding.kind == HANG:
        return SampleOrder(id=order_id, mode=NOW, interval_ns=STALLED_INTERVAL_NS, lasts_ns=STALLED_NS, steps_max=1)
    step_ns = attempt.medians.step_ns_median(rank)
    if step_ns is None or step_ns <= 0:
        return None
    if finding.kind == MEMORY_GROWTH:
        lasts_ns = max(HELD_NS, round(HELD_STEPS * step_ns))
        return SampleOrder(id=order_id, mode=HELD, interval_ns=0, lasts_ns=lasts_ns, steps_max=0)
    if finding.kind == PERIODIC_WORK or finding.pattern == "intermittent":
        return SampleOrder(
            id=order_id,
            mode=LONG,
            interval_ns=INTERVAL_NS,
            lasts_ns=RARE_LASTS_NS,
            steps_max=RARE_STEPS,
            longer_than_ns=round(max(RARE_RATIO * step_ns, step_ns + find_excess_ns(finding) / 2)),
        )
    lasts_ns = max(LASTS_NS, round((LONG_STEPS + 1) * step_ns))
    return SampleOrder(
        id=order_id,
        mode=WHOLE,
        interval_ns=max(INTERVAL_NS, lasts_ns // INTERVALS_MAX),
        lasts_ns=lasts_ns,
        steps_max=STEPS_MAX,
    )


def _compare(search: _Search) -> SampledLines | None:
    taken = {rank: one for rank, one in search.answers.items() if one.state == "taken"}
    if search.finding.kind == HANG:
        return describe_stalled(taken, search.finding.ranks)
    (rank, *peers) = (one.rank for one in search.asked)
    if rank not in taken:
        return None
    if search.finding.kind == MEMORY_GROWTH:
        return describe_growth(rank, taken[rank])
    peer = next(iter(peers), None)
    peer_taken = None if peer is None else taken.get(peer)
    is_rare = search.order is not None and search.order.mode == LONG
    return compare_lines(
        rank, taken[rank], peer, peer_taken, find_excess_ns(search.finding), each="slow step" if is_rare else "step"
    )
