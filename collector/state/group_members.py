"""The process groups of one attempt of a run, as its ranks tell them. Bounded: a rank may tell anything."""

from rankscope.measure.records import GroupInfo

MEMBERSHIPS_PER_RANK_MAX = 64
"""Groups that a rank is in, on the average of all ranks. Five kinds of parallelism and what is combined of them make
some twenty."""
MEMBERSHIPS_MIN = 4096
"""There is room for so many even in the smallest run."""


class GroupMembers:
    """Who is in each group: `by_label`, sorted. `left_out` counts what there was no room for."""

    def __init__(self, world_size: int) -> None:
        self.by_label: dict[str, tuple[int, ...]] = {}
        self.left_out = 0
        self._room = max(MEMBERSHIPS_MIN, MEMBERSHIPS_PER_RANK_MAX * world_size)

    def learn(self, group: GroupInfo) -> tuple[int, ...] | None:
        """The members of a group that a rank tells of; None when there is no room for it: then nobody knows it."""
        known = self.by_label.get(group.label)
        if known is not None and len(known) == len(group.ranks):
            return known
        needed = len(group.ranks) + 1 - (0 if known is None else len(known) + 1)
        if needed > self._room:
            self.left_out += 1
            return None
        self._room -= needed
        members = self.by_label[group.label] = tuple(sorted(group.ranks))
        return members
