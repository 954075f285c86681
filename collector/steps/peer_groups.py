"""Group the ranks that do the same work, so that each is compared with its peers.

Three ways, the strictest first:

- ranks whose steps have the same signature (which collectives, of what sizes);
- ranks with fewer than PEERS_MIN such peers: those whose steps are alike apart from small collectives
  (`workload_signature.py`), as where two ranks add up one number more than the others;
- the others: all ranks of the run. They differ in their work, so only a change of their ratio to it says anything.

Peers also have the same model of GPU, where that is known: a slower model is no fault of its ranks
(`run_rules/device_models.py`).
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rankscope.collector.steps.step_series import Floats

PEERS_MIN = 3
"""A rank with fewer peers of its own signature is compared with ranks whose steps are alike, where there are any. The
noise of so few is read from all ranks of the run that have peers."""

PEERS_SAMPLED_MAX = 128
"""At most this many peers of a rank, evenly spread, are read for more than their step times (samples, windows)."""

SIGNATURES_MAX = 256
"""Different signatures among which ranks with the same kind of work are looked for."""

SLOW_SHARE_MIN = 0.25
"""Share of a rank's peers that are known to be slow from which on they move the median and are left out."""


class Peers(NamedTuple):
    """The ranks that one rank is compared with, without itself: `size` of them, PEERS_SAMPLED_MAX at most in `ranks`.
    `do_same_work` is False when all ranks stand in because none does the same work. `are_apart`: the rank is known to
    be slow, and neither it nor others that are known to be slow count among them.
    """

    ranks: tuple[int, ...]
    size: int
    do_same_work: bool
    are_apart: bool = False


class PeerComparison(NamedTuple):
    """Each of `members` is compared with the others of `against`. Both are ranks in ascending order. `are_apart`: no
    member is among these.
    """

    members: tuple[int, ...]
    against: tuple[int, ...]
    do_same_work: bool
    are_apart: bool = False

    def peers_of(self, rank: int) -> Peers:
        """Return the peers of one of the members."""
        sampled = self.against[:: -(-len(self.against) // PEERS_SAMPLED_MAX) or 1]
        at = bisect_left(sampled, rank)
        others = sampled[:at] + sampled[at + 1 :] if sampled[at : at + 1] == (rank,) else sampled
        return Peers(others, len(self.against) - (not self.are_apart), self.do_same_work, self.are_apart)


class PeerGroups(NamedTuple):
    """All comparisons of a run. Every rank is a member of exactly one of them, `place[rank]`.

    `works` are the groups of two ranks and more that do the same work, on whatever GPUs: a pipeline stage, an expert
    group, or the run. `models`: the model of each rank's GPU where there are several, None where it is not known; empty
    otherwise. `alike`: groups of ranks that do the same kind of work, of which some have more of it (bytes in
    all-to-alls), and so no peers.
    """

    comparisons: tuple[PeerComparison, ...]
    place: Mapping[int, int]
    works: tuple[tuple[int, ...], ...] = ()
    models: Mapping[int, str | None] = {}
    alike: tuple[tuple[int, ...], ...] = ()

    def of(self, rank: int) -> PeerComparison:
        """Return the comparison that a rank is a member of."""
        return self.comparisons[self.place[rank]]

    @property
    def ranks_without_peers(self) -> tuple[int, ...]:
        """Return the ranks that no other does the same work as: they are judged by their own past only."""
        return tuple(rank for one in self.comparisons if not one.do_same_work for rank in one.members)

    def with_alike(self) -> "PeerGroups":
        """Return the comparisons in which ranks that do the same kind of work are peers, whoever has more of it."""
        if not self.alike:
            return self
        again = {rank for group in self.alike for rank in group}
        kept = [
            one._replace(members=tuple(rank for rank in one.members if rank not in again)) for one in self.comparisons
        ]
        groups = [PeerComparison(group, group, do_same_work=True) for group in self.alike]
        comparisons = (*(one for one in kept if one.members), *groups)
        place = {rank: number for number, one in enumerate(comparisons) for rank in one.members}
        return PeerGroups(comparisons, place, self.works)

    def without(self, slow: Collection[int]) -> "PeerGroups":
        """Return the comparisons without the ranks that are known to be slow, where those are many; each of them is
        compared with the others: a second slow rank must not move what the first is compared with.
        """
        comparisons = [part for one in self.comparisons for part in _leave_out(one, slow)]
        place = {rank: number for number, one in enumerate(comparisons) for rank in one.members}
        if len(comparisons) == len(self.comparisons):
            return self
        return self._replace(comparisons=tuple(comparisons), place=place)


def _leave_out(one: PeerComparison, slow: Collection[int]) -> list[PeerComparison]:
    found = tuple(rank for rank in one.members if rank in slow)
    others = tuple(rank for rank in one.members if rank not in slow)
    if not one.do_same_work or not others or len(found) < SLOW_SHARE_MIN * (len(one.members) - 1):
        return [one]
    rest = PeerComparison(others, others if len(others) > 1 else one.against, do_same_work=True)
    return [rest, PeerComparison(found, others, do_same_work=True, are_apart=True)]


def _itself(signature: Any) -> Any:
    return signature


def find_peer_groups(
    ranks: Sequence[int],
    signatures: Mapping[int, Hashable],
    models: Mapping[int, str | None] | None = None,
    *,
    coarsen: Callable[[Any], Hashable | None] = _itself,
    measure_apart: Callable[[Any], Hashable] = _itself,
    classes: Mapping[int, int] | None = None,
) -> PeerGroups:
    """Group ranks by the signatures of their steps, then by what `coarsen` leaves of them, by the `classes` of their
    batches, and by their `models`. Few ranks with a signature of which it leaves None are no peers, unless they are all
    ranks. What `measure_apart` leaves of a signature is the kind of its work, without how much that is.

    Ranks without a peer, and those without a known signature, are compared with all ranks. When no signature is known
    at all, every rank is a peer of every other of its model.

    >>> find_peer_groups((0, 1, 2, 3, 4), {0: "first", 1: "first", 2: "last", 3: "first", 4: "first"}).comparisons[0]
    PeerComparison(members=(0, 1, 3, 4), against=(0, 1, 3, 4), do_same_work=True, are_apart=False)
    """
    all_ranks = tuple(sorted(ranks))
    models = models if models is not None and len({model for model in models.values() if model is not None}) > 1 else {}
    works = [part for work in _find_works(all_ranks, signatures, coarsen) for part in _split(work, classes or {})]
    groups = [group for work in works for group in _split(work, models) if len(group) > 1]
    comparisons = [PeerComparison(group, group, do_same_work=True) for group in groups]
    grouped = {rank for group in groups for rank in group}
    remaining = tuple(rank for rank in all_ranks if rank not in grouped)
    if remaining:
        comparisons.append(
            PeerComparison(remaining, all_ranks, do_same_work=not signatures and not models and not classes)
        )
    place = {rank: number for number, one in enumerate(comparisons) for rank in one.members}
    alike = tuple(
        group for group in _find_alike(remaining, signatures, measure_apart) if set(all_ranks).issuperset(group)
    )
    return PeerGroups(tuple(comparisons), place, tuple(work for work in works if len(work) > 1), models, alike)


def _find_alike(
    alone: tuple[int, ...], signatures: Mapping[int, Hashable], measure_apart: Callable[[Any], Hashable]
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of ranks with the same kind of work that have any of those that are `alone`."""
    if not alone or not signatures:
        return ()
    different = {id(one): one for one in signatures.values()}  # ranks with equal ones share the object
    if len(different) > SIGNATURES_MAX:  # sizes that vary from rank to rank; they are left out once they are known to
        return ()
    kinds = {number: measure_apart(one) for number, one in different.items()}
    groups: dict[Hashable, list[int]] = {}
    for rank, signature in signatures.items():
        groups.setdefault(kinds[id(signature)], []).append(rank)
    found = [tuple(sorted(group)) for group in groups.values() if len(group) > PEERS_MIN]
    return tuple(sorted(group for group in found if not set(alone).isdisjoint(group)))


def middle_of_ranks(own_ns: Floats) -> Floats:
    """Return what a group of ranks with equal work takes in each step, shape (n, ranks) to (n,): the median of those
    known, of which each step must have one; of two ranks the shorter time, so that one slow rank is no slow group.
    """
    if own_ns.shape[1] == 2:  # noqa: PLR2004
        return np.asarray(np.nanmin(own_ns, axis=1))
    middle_ns = np.median(own_ns, axis=1)  # a tenth of the time of nanmedian
    rows = np.flatnonzero(np.isnan(middle_ns))
    middle_ns[rows] = np.nanmedian(own_ns[rows], axis=1)
    return np.asarray(middle_ns)


def _find_works(
    ranks: tuple[int, ...], signatures: Mapping[int, Hashable], coarsen: Callable[[Any], Hashable | None]
) -> list[tuple[int, ...]]:
    """Return the groups of ranks with the same work, in the order of their first ranks."""
    if not signatures:
        return [ranks]
    exact: dict[Hashable, list[int]] = {}
    for rank in ranks:
        if rank in signatures:
            exact.setdefault(signatures[rank], []).append(rank)
    enough = min(PEERS_MIN + 1, len(ranks))
    groups = [group for group in exact.values() if len(group) >= enough]
    alike: dict[Hashable, list[int]] = {}
    for signature, group in exact.items():  # those with many ranks first: others may join them
        if len(group) >= enough:
            alike.setdefault(coarsen(signature), group)
    for signature, few in exact.items():
        coarse = coarsen(signature)
        if len(few) >= enough or coarse is None:
            continue
        if coarse not in alike:
            alike[coarse] = []
            groups.append(alike[coarse])
        alike[coarse] += few
    return sorted(tuple(sorted(group)) for group in groups)


def _split(work: tuple[int, ...], kinds: Mapping[int, Hashable]) -> list[tuple[int, ...]]:
    """Return the ranks of a group by their kind, as the model of their GPU."""
    if not kinds:
        return [work]
    by_kind: dict[Hashable, list[int]] = {}
    for rank in work:
        by_kind.setdefault(kinds.get(rank), []).append(rank)
    return [tuple(group) for group in by_kind.values()]
