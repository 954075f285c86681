"""The facts of one hang: who waits, for how long, in what, and the stacks and numbers that show it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from rankscope.collector.detect.standing import RankStanding
from rankscope.collector.detect.stuck import Graph, Stuck, find_call
from rankscope.collector.detect.view import JobView

STACKS_SHOWN_MAX: Final = 4
"""Stacks kept in a finding: ranks that hang together hang at the same line, and a stack is up to 10 KB of text."""


class HangFacts:
    """What a finding about a hang says. `ranks` are named for it, `stuck` is what the others wait in, None where that
    is not known. `is_over`: it is told in the past tense.
    """

    def __init__(
        self, view: JobView, graph: Graph, ranks: tuple[int, ...], stuck: Stuck | None, *, is_over: bool = False
    ) -> None:
        self.view = view
        self.graph = graph
        self.ranks = ranks
        self.stuck = stuck
        self.is_over = is_over

    @property
    def standings(self) -> Mapping[int, RankStanding]:
        """Where each rank stands."""
        return self.view.standings

    @cached_property
    def still(self) -> tuple[int, ...]:
        """The ranks that stand still, in ascending order."""
        return tuple(rank for rank, one in sorted(self.standings.items()) if one.stands_still)

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        """Those of them that wait in anything that is stuck, without the ranks named."""
        return tuple(sorted(self.graph.waiting.difference(self.ranks)))

    @cached_property
    def since_step(self) -> int | None:
        """The step in which it hangs: the one behind the last that has ended; None where none has."""
        last = [one for rank in self.still if (one := self.standings[rank].last_step) is not None]
        return max(last) + 1 if last else None

    @cached_property
    def stalled_ns(self) -> int | None:
        """How long nothing has happened, at the last word of the ranks that wait, or else that stand still."""
        known = (self.standings[rank].stalled_ns for rank in self.waiting or self.still)
        return max((one for one in known if one is not None), default=None)

    def find_size(self, stuck: Stuck) -> int | None:
        """The size in bytes of what is stuck, from a rank that waits in it; None where none tells."""
        calls = (find_call(stuck, self.standings[rank]) for rank in stuck.waiting)
        return next((one.bytes for one in calls if one is not None and one.bytes is not None), None)

    def find_last(self, stuck: Stuck) -> int | None:
        """The last collective that the first of the ranks named has enqueued in the group; None when not known."""
        if not self.ranks or stuck.is_handover:
            return None
        return self.standings[self.ranks[0]].enqueued_in(stuck.group)

    def count(self) -> dict[str, float]:
        """The numbers behind the sentence; what is not known is left out."""
        known: dict[str, float | None] = {
            "stalled_ranks": len(self.still),
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
        return {name: float(value) for name, value in known.items() if value is not None}

    def quote(self) -> dict[str, str]:
        """The stacks of the first of the ranks that it is about, and of one that waits for them."""
        about = [rank for rank in self.ranks or self.still if describe_stack(self.standings[rank])]
        stacks = {f"stack of rank {rank}": describe_stack(self.standings[rank]) for rank in about[:STACKS_SHOWN_MAX]}
        waits = describe_stack(self.standings[self.waiting[0]]) if self.ranks and self.waiting else ""
        return {**stacks, f"stack of rank {self.waiting[0]}, which waits": waits} if waits else stacks


def describe_stack(standing: RankStanding) -> str:
    """The stack of a rank's main thread, innermost frame first, one line each; the kernel's view of a rank that does
    not answer. Empty where neither is known.
    """
    if standing.unresponsive is not None:
        threads = standing.unresponsive.threads
        lines = [f"thread {one.thread} ({one.name}): {one.state} in {one.wait_channel or '?'}" for one in threads]
        return "\n".join(["no Python stack: the interpreter does not run", *lines])
    main = standing.main_stack
    if main is None:
        return ""
    lines = [f"{one.file}:{one.line} in {one.function}" for one in main.frames]
    return "\n".join([*lines, f"and {main.frames_left_out} more"] if main.frames_left_out else lines)
