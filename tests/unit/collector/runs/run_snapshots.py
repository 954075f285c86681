"""Snapshots of a run written out by hand."""

from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.identity import RankIdentity


def rank_of(rank: int, *, run: str = "bert", world_size: int = 2, **known: object) -> RankSnapshot:
    """A rank that is up, unless `known` says otherwise."""
    identity = RankIdentity(
        run=run, rank=rank, local_rank=rank, world_size=world_size, node="n0", restart_count=0, boot_id="boot-of-it",
        pid=7,
    )  # fmt: skip
    fields: dict[str, object] = {"up": True} | known
    return RankSnapshot(identity=identity, **fields)  # type: ignore[arg-type]
