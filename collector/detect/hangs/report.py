"""Write what is said about a hang: which ranks keep which others waiting, where, and in which collective."""

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import PAUSES, name_ranks
from rankscope.collector.detect.hang_state import RankHangState, find_pause
from rankscope.collector.detect.hangs.inspector_witness import count_dumps, describe_dumps, write_dump_witness
from rankscope.collector.detect.hangs.ras_witness import count_witness, describe_witness, write_witness
from rankscope.collector.detect.hangs.wait_graph import Stuck, WaitForGraph, find_call, find_calls
from rankscope.collector.detect.view import RunView
from rankscope.measure.stalls import EXCUSED_ACTIVITIES, UNRECORDED_SEQUENCE, describe_frame, find_script_frame

STACKS_SHOWN_MAX: Final = 4
"""Stacks kept in a finding: ranks that hang together hang at the same line, and a stack has up to 10 KB."""


class HangFacts:
    """The facts that a finding about a hang states. `ranks` are named as its origin, `stuck` is what the others wait
    in, None when not known.
    """

    def __init__(self, view: RunView, graph: WaitForGraph, ranks: tuple[int, ...], stuck: Stuck | None) -> None:
        self.view = view
        self.graph = graph
        self.ranks = ranks
        self.stuck = stuck

    @property
    def hang_states(self) -> Mapping[int, RankHangState]:
        """Return the state of each rank."""
        return self.view.hang_states

    @cached_property
    def stalled(self) -> tuple[int, ...]:
        """Return the stalled ranks, in ascending order; where none is, those in a pause that may take long."""
        states = sorted(self.hang_states.items())
        stalled = tuple(rank for rank, one in states if one.is_stalled_now)
        return stalled or tuple(rank for rank, one in states if find_pause(one) is not None)

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        """Return the ranks that wait in anything that is stuck, without the ranks named; where nothing is, those in
        calls that wait for others without a record.
        """
        waiting = self.graph.waiting or {rank for rank, one in self.hang_states.items() if one.waits_unrecorded}
        return tuple(sorted(waiting.difference(self.ranks)))

    @cached_property
    def since_step(self) -> int | None:
        """Return the step in which it hangs, the one after the last completed step; None when there is none."""
        last = [one for rank in self.stalled if (one := self.hang_states[rank].last_step) is not None]
        return max(last) + 1 if last else None

    @cached_property
    def stalled_ns(self) -> int | None:
        """Return how long the waiting ranks, or else the stalled ones, had made no progress at their last report."""
        known = (self.hang_states[rank].stalled_ns for rank in self.waiting or self.stalled)
        return max((one for one in known if one is not None), default=None)

    def find_size(self, stuck: Stuck) -> int | None:
        """Return the size in bytes of what is stuck, from a rank that waits in it; None when not known."""
        calls = (find_call(stuck, self.hang_states[rank]) for rank in stuck.waiting)
        return next((one.bytes for one in calls if one is not None and one.bytes is not None), None)

    def find_last(self, stuck: Stuck) -> int | None:
        """Return the last sequence that the first of the ranks named has enqueued in the group; None when not known, as
        of a rank that has not reported since.
        """
        first = self.hang_states[self.ranks[0]] if self.ranks else None
        if first is None or stuck.is_point_to_point or first.has_old_counters:
            return None
        return first.enqueued_in(stuck.group)

    def collect_evidence(self) -> dict[str, float]:
        """Return the numbers behind it, without those not known."""
        known: dict[str, float | None] = {
            "stalled_ranks": len(self.stalled),
            "waiting_ranks": len(self.waiting),
            "stalled_ns": self.stalled_ns,
        }
        if self.stuck is not None:
            known |= {
                "sequence": self.stuck.sequence,
                "group_max_sequence": self.stuck.furthest,
                "missing_sequence": self.find_last(self.stuck),
                "waiting_bytes": self.find_size(self.stuck),
            }
        if self.view.ras is not None:
            known |= count_witness(self.view.ras)
        known |= count_dumps(self.view.dumps)
        return {name: float(value) for name, value in known.items() if value is not None}

    def collect_details(self) -> dict[str, str]:
        """Return the stacks, what NCCL's RAS service said, and what NCCL's Inspector had dumped."""
        ras, dumps = self.view.ras, self.view.dumps
        said = {} if ras is None else {"NCCL RAS": describe_witness(ras)}
        return self.collect_stacks() | said | ({"NCCL Inspector": describe_dumps(dumps)} if dumps else {})

    def collect_stacks(self) -> dict[str, str]:
        """Return the stacks of the first of the ranks that it is about, and of one that waits for them."""
        about = [rank for rank in self.ranks or self.stalled if describe_stack(self.hang_states[rank])]
        stacks = {f"stack of rank {rank}": describe_stack(self.hang_states[rank]) for rank in about[:STACKS_SHOWN_MAX]}
        waits = describe_stack(self.hang_states[self.waiting[0]]) if self.ranks and self.waiting else ""
        return {**stacks, f"stack of rank {self.waiting[0]}, which waits": waits} if waits else stacks


def describe_stack(state: RankHangState) -> str:
    """Return the stack of a rank's main thread, innermost frame first, a line each; the kernel's view of a rank that
    does not respond. Empty when neither is known.
    """
    if state.unresponsive is not None:
        threads = state.unresponsive.threads
        lines = [f"thread {one.thread} ({one.name}): {one.state} in {one.wait_channel or '?'}" for one in threads]
        return "\n".join(["no Python stack: the interpreter is not running", *lines])
    main = state.main_stack
    if main is None:
        return ""
    lines = [f"{one.file}:{one.line} in {one.function}" for one in main.frames]
    return "\n".join([*lines, f"and {main.frames_left_out} more"] if main.frames_left_out else lines)


CYCLE_SHOWN_MAX: Final = 4
PLACES_SHOWN_MAX: Final = 3


class HangWords(NamedTuple):
    """What is said of a hang, without a verb in a tense: what keeps the ranks, who waits for that, and what other
    witnesses have said (`also`).
    """

    what: str
    why: str = ""
    also: tuple[str, ...] = ()


def write_hang(cause: str, facts: HangFacts) -> HangWords:
    """Return what is said of a hang of this cause."""
    words = _write_cause(cause, facts)
    ras = write_witness(cause, facts.ranks, facts.view.ras)
    dumps = write_dump_witness(cause, facts.ranks, facts.view.dumps)
    return words._replace(also=(*words.also, *(one for one in (ras, dumps) if one)))


def _write_cause(cause: str, facts: HangFacts) -> HangWords:
    if cause == "deadlock":
        return _describe_cycle(facts)
    if cause == "unmatched_transfer" and facts.stuck is not None:
        return _describe_unmatched(facts, facts.stuck)
    if facts.ranks:
        return _describe_missing(facts)
    if facts.stuck is None:
        return _describe_pause(facts, cause) if cause in PAUSES else _describe_stalled(facts)
    write = {"order_mismatch": _describe_mismatch, "all_in_collective": _describe_incomplete}.get(
        cause, _describe_unknown
    )
    return write(facts, facts.stuck)


def describe_place(state: RankHangState) -> str:
    """Return where a rank is, or was, in words that follow its name."""
    if state.is_silent and not state.is_stalled_now:
        return "not reporting (whether its process is alive: not known)"
    if state.ended is not None and not state.is_silent:
        return f"ended: {state.ended}{f' ({state.ended_detail})' if state.ended_detail else ''}"
    if state.unresponsive is not None:
        return _describe_unresponsive(state)
    frame = find_script_frame(state.frames)
    place = "" if frame is None else f" at {describe_frame(frame)}"
    if not state.is_stalled_now and find_pause(state) is None:
        return f"still running{place}"
    return _describe_stall(state, place)


def _describe_stall(state: RankHangState, place: str) -> str:
    if find_pause(state) is not None or state.is_busy or state.waits_for_data:
        return f"{_describe_busyness(state)}{_describe_work_place(state)}"
    inside = "" if state.activity in {None, "other"} else f" in {state.activity}"
    silent = ", no longer reporting" if state.is_silent else ""
    return f"stalled{inside}{place}{silent}"


def _describe_busyness(state: RankHangState) -> str:
    return "waiting for data" if state.waits_for_data else "busy without training"


def _describe_work_place(state: RankHangState) -> str:
    """Return ` in evaluate at train.py:55`, the call of the script that a busy rank has been in all the time, and what
    it does where that is known: ` in save_all at train.py:60 (checkpoint)`.
    """
    samples = None if state.stall is None or state.waits_for_data else state.stall.samples
    frame = find_script_frame(state.frames) if samples is None else samples.frame
    doing = f" ({state.activity})" if state.activity in EXCUSED_ACTIVITIES else ""
    return doing if frame is None else f" in {frame.function} at {frame.file.rpartition('/')[2]}:{frame.line}{doing}"


def _describe_unresponsive(state: RankHangState) -> str:
    process = "" if state.unresponsive is None else state.unresponsive.state
    what = "its Python interpreter not running"
    if state.is_stopped:
        what = "its process blocked in the kernel" if process == "D" else "its process stopped"
    return f"not responding, {what}{f' (state {process})' if process else ''}"


def _describe_missing(facts: HangFacts) -> HangWords:
    first = facts.ranks[0]
    place = describe_place(facts.hang_states[first])
    what = f"rank {first} ({facts.view.nodes.get(first, 'node not known')}) {place}"
    if len(facts.ranks) > 1:
        what = f"{name_ranks(facts.ranks)} awaited by the others; rank {first} of these {place}"
    stuck = facts.stuck
    it = "it" if len(facts.ranks) == 1 else "them"
    if stuck is None and facts.waiting and not facts.graph.waiting:
        return HangWords(what, f"waiting for {it}: {_list_places(facts, facts.waiting)}")
    if stuck is None:
        return HangWords(what, f"{_count(facts.stalled)} stalled")
    last = facts.find_last(stuck)
    behind = () if last is None or last >= stuck.sequence else (f"last collective of rank {first} there: {last}",)
    others = set(facts.waiting).difference(stuck.waiting)
    chained = (f"{_count(others, 'more ')} waiting in other collectives",) if others else ()
    why = f"{_count(stuck.waiting)} waiting for {it} in {_describe_operation(facts, stuck)}"
    return HangWords(what, why, (*behind, *chained))


def _describe_cycle(facts: HangFacts) -> HangWords:
    shown = facts.ranks[:CYCLE_SHOWN_MAX]
    held = [(rank, one) for rank in shown for one in facts.graph.stuck if rank in one.waiting and one.missing]
    first = dict(reversed(held))
    parts = [f"rank {rank} in {_name_call(first[rank])} for {name_ranks(first[rank].missing)}" for rank in shown]
    return HangWords(f"{name_ranks(facts.ranks)} waiting for each other", ", ".join(parts))


def _describe_unmatched(facts: HangFacts, stuck: Stuck) -> HangWords:
    (waiting,), (peer,) = stuck.waiting, stuck.missing
    elsewhere = next(one for one in facts.graph.stuck if peer in one.waiting)
    return HangWords(
        f"rank {waiting} waiting in {_name_call(stuck)}",
        f"rank {peer} waiting in {_name_call(elsewhere)}, without having called the matching send or receive",
    )


def _describe_stalled(facts: HangFacts) -> HangWords:
    return HangWords(f"{_count(facts.stalled)} stalled, in no known collective", _list_places(facts, facts.stalled))


def _list_places(facts: HangFacts, ranks: Iterable[int]) -> str:
    """Return where these ranks are, those at one place together, at most PLACES_SHOWN_MAX places."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(describe_place(facts.hang_states[rank]), []).append(rank)
    parts = [f"{name_ranks(there)} {place}" for place, there in places.items()]
    left = len(parts) - PLACES_SHOWN_MAX
    return ", ".join([*parts[:PLACES_SHOWN_MAX], *([f"{left} more places"] if left > 0 else [])])


def _describe_pause(facts: HangFacts, cause: str) -> HangWords:
    """Describe ranks that are busy, or wait for data, while no rank waits for them in a collective."""
    ranks = [rank for rank, one in sorted(facts.hang_states.items()) if find_pause(one) == cause]
    first = facts.hang_states[ranks[0]]
    place = _describe_work_place(first)
    what = f"{name_ranks(ranks)} {_describe_busyness(first)}"
    if len(ranks) == 1 or not place:
        return HangWords(f"{what}{place}")
    return HangWords(what, f"rank {ranks[0]}{place}")


def _describe_mismatch(facts: HangFacts, stuck: Stuck) -> HangWords:
    calls = sorted(find_calls(stuck, facts.hang_states).items(), key=lambda call: call[1])
    parts = [f"{op}{'' if size is None else f' of {size} bytes'} on {name_ranks(ranks)}" for (op, size), ranks in calls]
    return HangWords(f"collective {stuck.sequence} of {stuck.group} not the same on all ranks", ", ".join(parts))


def _describe_incomplete(facts: HangFacts, stuck: Stuck) -> HangWords:
    members = facts.view.groups.get(stuck.group, stuck.waiting)
    where = f" on {name_ranks(stuck.waiting)}" if len(stuck.waiting) < len(members) else ""
    started = {rank: facts.hang_states[rank].started_in(stuck.group) for rank in stuck.waiting}
    late = [rank for rank, sequence in started.items() if sequence is not None and sequence < stuck.sequence]
    held_up = (f"not started on the device of {name_ranks(late)}",) if 0 < len(late) < len(started) else ()
    what = f"{_describe_operation(facts, stuck)} not completed{where}"
    return HangWords(what, f"all {len(members)} ranks of the group have entered it", held_up)


def _describe_unknown(facts: HangFacts, stuck: Stuck) -> HangWords:
    why = f", nor is the progress of {name_ranks(stuck.unknown)} in the group" if stuck.unknown else ""
    return HangWords(
        f"{_count(stuck.waiting)} waiting in {_describe_operation(facts, stuck)}",
        f"which rank they wait for is not known{why}",
    )


def _describe_operation(facts: HangFacts, stuck: Stuck) -> str:
    size = facts.find_size(stuck)
    return f"{_name_call(stuck)}{'' if size is None else f' ({size} bytes)'}"


def _name_call(stuck: Stuck) -> str:
    number = "" if stuck.sequence == UNRECORDED_SEQUENCE else f" {stuck.sequence}"
    return f"{stuck.op or 'collective'}{number} of {stuck.group}"


def _count(ranks: Collection[int], which: str = "") -> str:
    return f"{len(ranks)} {which}rank{'' if len(ranks) == 1 else 's'}"
