"""Where every rank stands while the job does not move, for the detector of hangs."""

from collections.abc import Mapping

from rankscope.collector.detect.endings import date_failure
from rankscope.collector.detect.standing import RankStanding
from rankscope.collector.state.rank import RankState
from rankscope.collector.state.vitals import BROUGHT_DOWN, ENDED_WELL, Vitals


def build_standings(ranks: Mapping[int, RankState], now_job_ns: int) -> dict[int, RankStanding]:
    """Each rank's standing."""
    return {number: _build(rank, now_job_ns) for number, rank in ranks.items()}


def _build(rank: RankState, now_job_ns: int) -> RankStanding:
    vitals, ending = rank.vitals, rank.vitals.ending
    since_host_ns = vitals.stalled_since_host_ns
    return RankStanding(
        ended=None if ending is None else ending.reason,
        ended_detail="" if ending is None else ending.detail,
        ended_job_ns=None if ending is None else vitals.ended_job_ns,
        failed_job_ns=_date_failure(vitals),
        is_stalled=vitals.is_stalled,
        stalled_ns=vitals.stalled_ns,
        since_job_ns=None if since_host_ns is None else rank.clock.to_job_time(since_host_ns, now_job_ns),
        last_step=rank.last_step,
        progress=vitals.progress,
        stall=vitals.stall,
        unresponsive=vitals.unresponsive,
    )


def _date_failure(vitals: Vitals) -> int | None:
    """When a rank began to end badly by itself; None where it did not."""
    ending, ended_job_ns = vitals.ending, vitals.ended_job_ns
    if ending is None or ended_job_ns is None or ending.reason in ENDED_WELL | BROUGHT_DOWN:
        return None
    is_only_seen = vitals.seen is not None and ending.detail == vitals.seen.detail
    return date_failure(ending.reason, ended_job_ns, is_only_seen=is_only_seen)
