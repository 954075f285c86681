"""Describe the internal state of a run for debugging. Pure."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from rankscope.collector.runs.events import LoggedEvent
from rankscope.collector.runs.run import RunState


class RunDump(msgspec.Struct, frozen=True, kw_only=True):
    """The inside of a run. `ranks` counts its rank processes by `up` or how they ended. `reports_pending` are not in
    the step table yet, `steps_unmatched` have the collectives of all ranks and are not matched yet. `latest_step` and
    `recorded_step` (the last one in the history) are -1 before any. `abstained` says why a detector gives no verdict,
    by its kind. `event_counts` are by kind since this collector knows the run; `events` are the last ones, oldest
    first. Times are of the collector's monotonic clock, which reads `now_collector_ns`.
    """

    run_id: str
    now_collector_ns: int
    is_superseded: bool
    is_over: bool
    attempt: int
    world_size: int
    restart_count: int
    ranks: Mapping[str, int]
    ranks_stalled: int
    ranks_awaited: int
    nodes: int
    groups: int
    groups_dropped: int
    reports_pending: int
    steps_unmatched: int
    latest_step: int
    recorded_step: int
    step_ns: int
    findings_opened: int
    findings_open: tuple[int, ...]
    abstained: Mapping[str, str]
    end: str | None
    is_concluded: bool
    last_message_collector_ns: int
    last_change_collector_ns: int
    event_counts: Mapping[str, int]
    events: tuple[LoggedEvent, ...]


def dump_run(run: RunState, now_collector_ns: int) -> RunDump:
    """Describe the internal state of a run. Any thread may call it: it reads attributes and copies, and changes
    nothing, so values may be of different events where the run changes meanwhile.
    """
    attempt, end, findings = run.attempt, run.ending.end, run.findings
    ranks = () if attempt is None else tuple(attempt.ranks.values())
    return RunDump(
        run_id=run.run,
        now_collector_ns=now_collector_ns,
        is_superseded=run.is_superseded,
        is_over=run.is_over,
        attempt=run.attempts,
        world_size=run.world_size,
        restart_count=0 if attempt is None else attempt.restart_count,
        ranks=dict(Counter(rank.ended or "up" for rank in ranks)),
        ranks_stalled=sum(bool(rank.liveness.is_stalled) and rank.is_live for rank in ranks),
        ranks_awaited=sum(rank.is_awaited for rank in ranks),
        nodes=0 if attempt is None else len(attempt.counts_by_node),
        groups=0 if attempt is None else len(attempt.groups.by_label),
        groups_dropped=0 if attempt is None else attempt.groups.dropped,
        reports_pending=0 if attempt is None else attempt.batcher.pending,
        steps_unmatched=0 if attempt is None else attempt.window.unmatched,
        latest_step=-1 if attempt is None else attempt.window.latest_step,
        recorded_step=-1 if attempt is None else attempt.recorded_step,
        step_ns=0 if attempt is None else attempt.step_ns,
        findings_opened=findings.opened,
        findings_open=tuple(sorted(finding.number for finding in findings.open_findings)),
        abstained=dict(findings.abstained),
        end=None if end is None else end.reason,
        is_concluded=run.ending.is_concluded,
        last_message_collector_ns=run.last_message_collector_ns,
        last_change_collector_ns=run.last_change_collector_ns,
        event_counts=run.log.counts,
        events=run.log.read(),
    )
