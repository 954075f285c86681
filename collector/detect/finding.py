"""What detection says: a Finding, or an Abstain with its reason."""

from collections.abc import Mapping

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict about one rank.

    `since_step` is the first step of the slowness; `slowdown_ratio` the rank's self time over its twins' (1 = equal);
    `cause` one of docs/definitions.md section 5; `evidence` holds the numbers behind the sentence, with their unit;
    `job_slowdown_ratio` the step over the ideal step, `lost_rank_seconds` what it has cost so far, all ranks together.
    """

    kind: str
    rank: int
    since_step: int
    slowdown_ratio: float
    cause: str
    sentence: str
    job_slowdown_ratio: float | None = None
    lost_rank_seconds: float | None = None
    evidence: Mapping[str, float] = {}


class Abstain(msgspec.Struct, frozen=True):
    """Detection gives no verdict, and says why."""

    reason: str
