"""Findings written out by hand, for tests of what becomes of them."""

import msgspec

from rankscope.collector.detect.finding import Finding

RUN = "bert"


def slow(rank: int = 2, *, number: int = 1, **known: object) -> Finding:
    """Build the finding of a straggler, changed by `known`."""
    finding = Finding(
        kind="straggler",
        number=number,
        ranks=(rank,),
        since_step=60,
        cause="host_cpu",
        sentence=f"Rank {rank} is slow.",
        slowdown_ratio=1.5,
        run_slowdown_ratio=1.4,
        evidence={"own_ns": 15.0},
    )
    return msgspec.structs.replace(finding, **known)
