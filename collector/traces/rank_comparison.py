"""Compare the ranks of one run: their collectives, their messages, and who is slower than its peers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces import cross_rank, pipeline, shared_clock
from rankscope.collector.traces.all_to_all import sum_all_to_alls
from rankscope.collector.traces.asked import NOTHING_ASKED, Asked
from rankscope.collector.traces.collective_sizes import sum_by_size
from rankscope.collector.traces.critical_path import PathInput, find_critical_path
from rankscope.collector.traces.cross_rank import Matching
from rankscope.collector.traces.net import attempt
from rankscope.collector.traces.pipeline_picture import StageStep, draw_pipeline
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import (
    AllToAlls,
    CollectiveSizeRow,
    CriticalPath,
    CrossRank,
    PipelinePicture,
    PipelineReport,
    RankReport,
    RankWait,
    SharedClock,
    Signs,
    StepReport,
)
from rankscope.collector.traces.shortened_path import add_shortened
from rankscope.collector.traces.tables import kind_of
from rankscope.collector.traces.traced_run import Verdict, judge_steps, view_steps
from rankscope.measure import intervals
from rankscope.measure.communication import bus_factor
from rankscope.measure.intervals import EMPTY, Intervals
from rankscope.measure.traced_messages import TracedMessage, forget_numbers
from rankscope.measure.units import NS_PER_S

ABSENT_SHOWN_MAX = 8
"""Ranks without a trace that a sentence names."""


class RanksSideBySide(NamedTuple):
    """All ranks side by side: the comparison, None of one rank, the ranks' reports completed with transfers, their
    collectives by size, the critical path and the all-to-alls, None where they were not asked for, and every wait of
    one for another, None where these are not known.
    """

    across: CrossRank | None
    reports: list[RankReport]
    collective_sizes: list[CollectiveSizeRow]
    critical_path: CriticalPath | None
    all_to_all: AllToAlls | None
    waits: Sequence[RankWait] | None = None


def compare_ranks(found: Sequence[RankAnalysis], asked: Asked = NOTHING_ASKED) -> RanksSideBySide:
    """Return the comparison of the ranks, with what is asked for of all of them together. What fails by a fault of ours
    is refused with that as the reason.
    """
    found = _forget_numbers(found)
    compared = _Compared(None, None, [attempt(partial(_complete_alone, one), _keep(one)) for one in found], ())
    if len(found) > 1:
        alone = compared.reports
        compared = attempt(lambda: _compare(found), lambda reason: _refuse_all(reason, alone))
    matching = compared.matching
    paths = [
        PathInput(one.report.rank, one.path, one.collectives, one.messages, on_device=bool(one.report.devices))
        for one in found
    ]
    return RanksSideBySide(
        compared.across,
        compared.reports,
        attempt(lambda: sum_by_size(found, matching), lambda _: []),
        _follow(paths, compared, asked) if asked.critical_path else None,
        attempt(lambda: sum_all_to_alls(found, matching), lambda _: None) if asked.all_to_all else None,
        compared.waits,
    )


def _forget_numbers(found: Sequence[RankAnalysis]) -> list[RankAnalysis]:
    by_file = forget_numbers(dict(enumerate(one.messages for one in found)))
    return [one._replace(messages=by_file[place]) for place, one in enumerate(found)]


def _keep(one: RankAnalysis) -> Callable[[str], RankReport]:
    return lambda reason: msgspec.structs.replace(one.report, warnings=[*one.report.warnings, reason])


def _follow(paths: Sequence[PathInput], compared: "_Compared", asked: Asked) -> CriticalPath:
    found = attempt(
        lambda: find_critical_path(paths, compared.matching, compared.pairs),
        lambda reason: CriticalPath(steps=[], parts=[], left_out_ns=0, notes=[f"No path was found: {reason}."]),
    )
    shares = asked.shorten
    if shares is None:
        return found
    return attempt(
        lambda: add_shortened(found, shares, paths, compared.matching, compared.pairs),
        lambda reason: msgspec.structs.replace(found, notes=[*found.notes, f"Nothing was simulated: {reason}."]),
    )


class _Compared(NamedTuple):
    """Result of comparing all ranks with each other."""

    across: CrossRank | None
    matching: Matching | None
    reports: list[RankReport]
    pairs: Sequence[pipeline.Pair]
    waits: Sequence[RankWait] | None = None


def _refuse_all(reason: str, reports: list[RankReport]) -> _Compared:
    across = CrossRank(
        collectives=[], wait_ns=None, transfer_ns=None, findings=[], lower_bound=False,
        refused=f"the comparison of the ranks: {reason}", end_disagreement_ns=None,
    )  # fmt: skip
    return _Compared(across, None, reports, ())


def _compare(found: Sequence[RankAnalysis]) -> _Compared:
    ranked = {one.report.rank: one for one in found if one.report.rank is not None}
    worlds = [one.report.world_size for one in ranked.values() if one.report.world_size is not None]
    matching = cross_rank.match(
        [
            cross_rank.RankCollectives(
                rank, one.report.host, one.collectives, on_host=not one.report.devices, steps=one.collective_steps
            )
            for rank, one in ranked.items()
        ],
        max(worlds, default=None),
    )
    collectives = cross_rank.split(matching)
    wait, transfer = cross_rank.sum_by_rank(collectives)
    believed = matching.refused is None
    traffic = _Traffic(ranked)
    work = _Work(ranked, matching, traffic)
    clock = shared_clock.place_traces(ranked, matching)
    staged = work.compare_stages(clock)
    view = view_steps(ranked, work.own_ns, work.peers, collectives)
    verdict = Verdict([], [], None)
    if view is not None and believed and traffic.refused is None:
        verdict = judge_steps(view, {rank: one.report for rank, one in ranked.items()}, collectives)
    every_wait = [*shared_clock.find_collective_waits(ranked, matching), *traffic.find_rank_waits()]
    waits, wait_count = shared_clock.find_longest_waits(every_wait)
    across = CrossRank(
        collectives=collectives,
        wait_ns=wait if believed else None,
        transfer_ns=transfer if believed else None,
        findings=[
            *verdict.findings,
            *(pipeline.find_slow_stage(staged, view) if staged is not None and view is not None else ()),
        ],
        lower_bound=matching.missing_ranks,
        refused=matching.refused,
        end_disagreement_ns=matching.end_disagreement_ns,
        standings=verdict.standings,
        pipeline=staged,
        pipeline_refused=traffic.refused,
        clock=clock,
        waits=waits,
        wait_count=wait_count,
        undecided=verdict.undecided,
    )
    reports = [work.complete(_add_transfers(one.report, matching)) for one in found]
    known = believed and (not traffic.by_rank or bool(traffic.paired.pairs))
    return _Compared(across, matching, reports, traffic.paired.pairs, every_wait if known else None)


def _complete_alone(one: RankAnalysis) -> RankReport:
    """Return the report of a rank without others: its own fastest message stands for all."""
    messages = list(one.messages.values())
    if not messages:
        return one.report
    excess_ns = pipeline.sum_excess(messages, pipeline.find_shortest({0: messages}), one.overlap)
    signs = msgspec.structs.replace(one.report.signs, message_excess_ns=excess_ns)
    return msgspec.structs.replace(one.report, signs=signs)


# -- messages ---------------------------------------------------------------------------------------------------------


class _Traffic:
    """The messages of all ranks. `chains` are the pipelines, None without; `refused` is the reason why the ranks are
    neither stages of a pipeline nor peers.
    """

    def __init__(self, ranked: Mapping[int, RankAnalysis]) -> None:
        self._ranked = ranked
        self.by_rank = {rank: list(one.messages.values()) for rank, one in ranked.items() if one.messages}
        self._shortest = pipeline.find_shortest(self.by_rank)
        self.paired = pipeline.pair_messages(self.by_rank)
        self.chains = pipeline.find_chains(self.by_rank, self.paired.pairs) if self.paired.pairs else None
        self.refused = None if self.chains is not None else self._refuse()

    def _refuse(self) -> str | None:
        if not self.by_rank or _is_symmetric(self.by_rank, len(self._ranked)):
            return None
        peers = {one.peer for messages in self.by_rank.values() for one in messages if one.peer is not None}
        absent = sorted(peers - set(self._ranked))
        if absent:
            return (
                f"there is no trace of {_name_absent(absent)}, with which they exchange messages: the stages of a "
                "pipeline are not known"
            )
        if self.paired.pairs:
            return (
                "the messages between the ranks form no pipeline that rankscope recognizes, and the ranks differ in "
                "how many messages they send and receive or in which they do first"
            )
        if self.paired.unknown:
            return (
                "the ranks exchange messages, and the traces do not say with whom. With gloo, record with "
                "record_shapes=True; where ranks are numbered differently in several process groups, the peer stays "
                "unknown"
            )
        return "no send has its receive in these traces: ranks are missing, or the steps differ"

    def find_waits(self, rank: int) -> Intervals:
        """Return raw intervals in which a rank waited for the peer of a message."""
        if rank not in self.by_rank:
            return EMPTY
        on_host = not self._ranked[rank].report.devices
        return pipeline.find_message_waits(self.by_rank[rank], self._shortest, on_host=on_host)

    def find_rank_waits(self) -> Iterator[RankWait]:
        """Yield the waits for the sender of a message, where it is known."""
        for one in self.paired.pairs:
            mine, source, rank = one.recv, self._ranked[one.source], self._ranked[one.destination]
            start_ns = max(mine.start_ns, mine.blocked_from_ns)
            wait_ns = mine.end_ns - self._shortest[mine.op, mine.bytes] - start_ns
            if wait_ns > 0:
                yield RankWait(
                    rank=one.destination,
                    late_rank=one.source,
                    step=mine.step,
                    op=mine.op,
                    group=None,
                    start_ns=start_ns - rank.origin_ns,
                    wait_ns=wait_ns,
                    late_start_ns=one.send.start_ns - source.origin_ns,
                )

    def sum_excess(self, rank: int) -> int:
        """Return the ns that a rank's messages took longer than the fastest of all ranks, outside of compute."""
        return pipeline.sum_excess(self.by_rank[rank], self._shortest, self._ranked[rank].overlap)

    def find_excess(self, rank: int) -> Intervals:
        """Return raw intervals in which a rank's messages took longer than the fastest of all ranks."""
        return pipeline.find_excess(self.by_rank.get(rank, ()), self._shortest)


def _name_absent(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:ABSENT_SHOWN_MAX]))
    more = f" and {len(ranks) - ABSENT_SHOWN_MAX} more" if len(ranks) > ABSENT_SHOWN_MAX else ""
    return f"rank{'s' * (len(ranks) != 1)} {named}{more}"


def _is_symmetric(by_rank: Mapping[int, Sequence[TracedMessage]], rank_count: int) -> bool:
    """Return whether every rank sends and receives as many messages, first the same, as peers do."""
    counts = {
        (messages[0].op, *(sum(one.op == op for one in messages) for op in ("send", "recv", "send_recv")))
        for messages in by_rank.values()
    }
    return len(counts) == 1 and len(by_rank) == rank_count


# -- work -------------------------------------------------------------------------------------------------------------


class _Work:
    """The own times of all ranks, by step in ns: their steps without waits for collectives and messages, where
    computing does not hide them.
    """

    def __init__(self, ranked: Mapping[int, RankAnalysis], matching: cross_rank.Matching, traffic: _Traffic) -> None:
        """Take waits from the matching unless it was refused."""
        self._believed = matching.refused is None
        matching = matching if self._believed else matching._replace(matched=())
        self._ranked = ranked
        self._matching = matching
        self._traffic = traffic
        stages = [chain.ranks for chain in traffic.chains or ()]
        stage_of = {rank: stage for ranks in stages for stage, rank in enumerate(ranks)}
        # Where the stages are not known, any collective may be one between them.
        self._between = matching._replace(
            matched=[
                one
                for one in matching.matched
                if traffic.refused is not None or len({stage_of.get(rank) for rank in one.by_rank}) > 1
            ]
        )
        self._waiting = {rank: self._find_waiting(rank, matching) for rank in ranked}
        self.own_ns = {rank: _find_own_times(one, self._waiting[rank]) for rank, one in ranked.items()}

    def _find_waiting(self, rank: int, matching: cross_rank.Matching) -> Intervals:
        raw = np.concatenate([cross_rank.find_waiting(matching, rank), self._traffic.find_waits(rank)])
        return intervals.subtract(intervals.union(raw), self._ranked[rank].overlap)

    @property
    def peers(self) -> list[list[int]]:
        """Return the ranks that do the same work: those of a stage, without a pipeline all."""
        chains = self._traffic.chains
        if chains is None:
            return [sorted(self._ranked)]
        return [sorted(chain.ranks[stage] for chain in chains) for stage in range(len(chains[0].ranks))]

    def compare_stages(self, clock: SharedClock) -> PipelineReport | None:
        """Return the stages of the pipeline, None without one."""
        chains = self._traffic.chains
        if chains is None:
            return None
        ranks = [rank for chain in chains for rank in chain.ranks]
        bubbles = {rank: self._find_waiting(rank, self._between) for rank in ranks}
        steps = {
            rank: pipeline.find_steps(self._ranked[rank], chain, rank, self.own_ns[rank], bubbles[rank])
            for chain in chains
            for rank in chain.ranks
        }
        found = pipeline.compare_stages(chains, steps, self._traffic.paired)
        if found is None:
            return None
        return msgspec.structs.replace(found, picture=self._draw_pipeline(chains, bubbles, clock))

    def _draw_pipeline(
        self, chains: Sequence[pipeline.Chain], bubbles: Mapping[int, Intervals], clock: SharedClock
    ) -> PipelinePicture | None:
        steps = {}
        for rank, bubble in bubbles.items():
            one, messages = self._ranked[rank], self._traffic.by_rank[rank]
            steps[rank] = {
                number: StageStep(start_ns, end_ns, [m for m in messages if m.step == number], bubble, one.backward)
                for number, start_ns, end_ns in one.steps
            }
        starts_ns = clock.starts_ns
        shifts_ns = {rank: self._ranked[rank].origin_ns - starts_ns[str(rank)] for rank in steps} if starts_ns else None
        return draw_pipeline(chains, steps, shifts_ns)

    def complete(self, report: RankReport) -> RankReport:
        """Return the report with the waiting of each step, and with the waits for messages, and in a pipeline for other
        stages, that are no transfer.
        """
        rank = report.rank
        if rank is None:
            return report
        report = msgspec.structs.replace(report, signs=self._add_waits(report, rank))
        if self._believed or self._traffic.paired.pairs:
            report = msgspec.structs.replace(report, steps=[self._add_waiting(rank, step) for step in report.steps])
        if rank not in self._traffic.by_rank:
            return report
        raw = cross_rank.find_waiting(self._between, rank)
        waited_ns = intervals.total_ns(intervals.subtract(intervals.union(raw), self._ranked[rank].overlap))
        signs = msgspec.structs.replace(
            report.signs,
            message_excess_ns=self._traffic.sum_excess(rank),
            stage_wait_ns=waited_ns if self._believed else None,
        )
        return msgspec.structs.replace(report, signs=signs)

    def _add_waits(self, report: RankReport, rank: int) -> Signs:
        """Return the signs with the exposed communication that was no transfer: waits in collectives, and what messages
        took beyond the fastest; unchanged where one of these is not known.
        """
        if not self._believed or (self._traffic.by_rank and not self._traffic.paired.pairs):
            return report.signs
        one = self._ranked[rank]
        raw = np.concatenate([cross_rank.find_waiting(self._matching, rank), self._traffic.find_excess(rank)])
        waits = intervals.subtract(intervals.union(raw), one.overlap)
        start_ns = one.origin_ns + report.start_ns
        return msgspec.structs.replace(
            report.signs,
            exposed_wait_ns=intervals.total_ns(intervals.clip(waits, start_ns, start_ns + report.window_ns)),
            step_wait_ns=intervals.total_ns(intervals.intersect(waits, one.judged)),
            waits_are_lower_bound=self._matching.missing_ranks,
        )

    def _add_waiting(self, rank: int, step: StepReport) -> StepReport:
        on_device = step.on_device
        if on_device is not None:
            waiting_ns = self._sum_waiting(rank, on_device.start_ns, on_device.window_ns)
            on_device = msgspec.structs.replace(on_device, waiting_ns=waiting_ns)
        waiting_ns = self._sum_waiting(rank, step.start_ns, step.window_ns)
        return msgspec.structs.replace(step, on_device=on_device, waiting_ns=waiting_ns)

    def _sum_waiting(self, rank: int, start_ns: int, window_ns: int) -> int:
        start_ns += self._ranked[rank].origin_ns
        mine = intervals.touching(self._waiting[rank], start_ns, start_ns + window_ns)
        return intervals.total_ns(intervals.clip(mine, start_ns, start_ns + window_ns))


def _find_own_times(one: RankAnalysis, waiting: Intervals) -> dict[int, int]:
    """Return by step its length less these waits, in ns."""
    return {
        number: end_ns - start_ns - intervals.total_ns(intervals.clip(waiting, start_ns, end_ns))
        for number, start_ns, end_ns in one.steps
    }


# -- transfers --------------------------------------------------------------------------------------------------------


def _add_transfers(report: RankReport, matching: cross_rank.Matching) -> RankReport:
    """Return the report with transfer and bus bandwidth of each kind of collective whose calls were all matched."""
    transfers = cross_rank.sum_transfers(matching, report.rank) if report.rank is not None else {}
    rows = []
    for row in report.collectives:
        count, transfer_ns = transfers.get(kind_of(row), (0, 0))
        if count == row.count:
            factor = bus_factor(row.op, row.group_size or 0)
            known = row.bytes is not None and factor is not None and transfer_ns > 0
            bandwidth = (row.bytes or 0) * (factor or 0) * NS_PER_S / transfer_ns if known else None
            row = msgspec.structs.replace(row, transfer_ns=transfer_ns, bus_bandwidth_bytes_per_s=bandwidth)  # noqa: PLW2901 - the row, completed
        rows.append(row)
    return msgspec.structs.replace(report, collectives=rows)
