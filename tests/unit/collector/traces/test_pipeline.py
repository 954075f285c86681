"""Pipelines of known truth: which stage holds them up, where they wait, and that clean ones accuse nobody."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.pipeline import find_chains, pair_messages
from rankscope.collector.traces.report import CrossRank, PipelineReport, TraceReport
from rankscope.collector.traces.timeline import merge
from rankscope.measure.traced_messages import TracedMessage
from tests.pipelines import BACKWARD_US, FORWARD_US, MOVE_US, SCHEDULES, Job, Truth, write_traces

US = 1_000
SIZES = ((2, 4), (3, 6), (4, 8), (8, 16))
BACKENDS = ("gloo", "nccl")


def analyzed(folder: Path, job: Job, *, backend: str = "gloo", with_peers: bool = True) -> tuple[TraceReport, Truth]:
    truth = write_traces(folder, job, backend=backend, with_peers=with_peers)
    with ThreadPoolExecutor(1) as pool:
        return analyze(str(folder), executor=pool), truth


def across(report: TraceReport) -> CrossRank:
    assert report.cross_rank is not None
    return report.cross_rank


def stages_of(report: TraceReport) -> PipelineReport:
    staged = across(report).pipeline
    assert staged is not None, across(report).pipeline_refused
    return staged


def named(report: TraceReport) -> list[tuple[str, int]]:
    return [(finding.kind, finding.rank) for finding in across(report).findings]


def verdict_of(report: TraceReport) -> str:
    verdict = next(one for one in build_sections(report, 20) if one.key == "verdict")
    return " ".join(cell.text for row in verdict.rows for cell in row)


# -- who is named -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("size", SIZES)
def test_clean_pipeline_accuses_nobody(schedule: str, size: tuple[int, int], backend: str, tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job(schedule, *size, jitter=0.05), backend=backend)
    assert named(report) == []
    assert {one.key for one in report.advice} <= {"pipeline_bubble", "low_gpu_utilization", "small_kernels"}


SLOW = [
    (schedule, stages, microbatches, slow)
    for schedule in SCHEDULES
    for stages, microbatches in ((2, 4), (4, 8), (8, 16))
    for slow in sorted({0, stages // 2, stages - 1})
]


@pytest.mark.parametrize(("place", "case"), list(enumerate(SLOW)))
def test_slow_stage_is_named_in_24_of_24(place: int, case: tuple[str, int, int, int], tmp_path: Path) -> None:
    schedule, stages, microbatches, slow = case
    job = Job(schedule, stages, microbatches, {slow: 1.3}, jitter=0.05, seed=place)
    report, _ = analyzed(tmp_path, job, backend=BACKENDS[place % 2])
    assert named(report) == [("slow_stage", slow)]
    # 1.3 times, within the jitter and what moving the messages takes.
    assert stages_of(report).stages[slow].work_ratio == pytest.approx(1.3, abs=0.04)


@pytest.mark.parametrize("replicas", [2, 3])
def test_slower_replica_is_a_straggler_and_its_stage_is_not_slow(replicas: int, tmp_path: Path) -> None:
    # Three stages: rank 4 is stage 1 of the second replica.
    report, _ = analyzed(tmp_path, Job("1F1B", 3, 6, replicas=replicas, slow_ranks={4: 1.5}))
    ranks = [list(range(stage, 3 * replicas, 3)) for stage in range(3)]
    assert [stage.ranks for stage in stages_of(report).stages] == ranks
    assert named(report) == [("straggler", 4)]


def test_rank_alone_has_its_waits_for_messages_taken_off(tmp_path: Path) -> None:
    write_traces(tmp_path, Job("1F1B", 4, 4), backend="nccl")
    report = analyze(str(tmp_path / "rank3.json"))
    # Of each step: a forward of each of the three stages before it passed until its first message.
    assert (report.ranks[0].signs.message_excess_ns or 0) > 3 * 3 * FORWARD_US * US


# -- work and bubble --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_work_and_bubble_are_those_of_the_schedule(schedule: str, backend: str, tmp_path: Path) -> None:
    report, truth = analyzed(tmp_path, Job(schedule, 4, 8, {2: 1.4}), backend=backend)
    staged = stages_of(report)
    for stage, work_us in zip(staged.stages, truth.work_us, strict=True):
        # What moving took counts as work: at most 4 messages a microbatch and chunk, of 30 us, in 48 ms and more.
        assert 0 <= stage.work_ns - work_us * US / 3 <= 8 * 2 * 4 * 30 * US
    assert staged.bubble_ratio == pytest.approx(sum(truth.bubble_us) / sum(truth.bubble_us + truth.work_us), abs=0.02)
    assert (staged.is_interleaved, staged.unpaired_count) == (schedule == "interleaved", 0)


def test_last_stage_waits_for_first_forward_and_last_backward(tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job("1F1B", 4, 8))
    last = stages_of(report).stages[-1]
    assert last.warm_up_ns is not None
    assert last.drain_ns is not None
    # Three stages before it: a forward each until its first message, a backward each after its last.
    assert last.warm_up_ns == pytest.approx(3 * (FORWARD_US + MOVE_US) * US, rel=0.02)
    assert last.drain_ns == pytest.approx(3 * (BACKWARD_US + MOVE_US) * US, rel=0.02)
    assert (last.steady_ns or 0) < 1_000 * US


def test_bubble_is_shown_by_stage(tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job("1F1B", 2, 4))
    table = next(one for one in build_sections(report, 20) if one.key == "pipeline")
    assert [[cell.text for cell in row][:2] for row in table.rows] == [["0", "0"], ["1", "1"]]
    text = verdict_of(report)
    assert "The 2 stages of the pipeline work " in text
    assert "of their time is bubble." in text
    assert "each stage has one rank here, or its ranks have no step in common." in text


def test_chunks_and_unpaired_messages_are_in_the_verdict(tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job("interleaved", 4, 8))
    staged = msgspec.structs.replace(stages_of(report), unpaired_count=1_200)
    report = msgspec.structs.replace(report, cross_rank=msgspec.structs.replace(across(report), pipeline=staged))
    assert "The 4 stages of the pipeline (several chunks each) work " in verdict_of(report)
    assert "bubble. 1,200 sends and receives could not be paired." in verdict_of(report)


def test_bubble_is_no_communication(tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job("1F1B", 4, 4), backend="nccl")
    assert "communication_bound" not in {one.key for one in report.advice}
    reason = next(one.reason for one in report.abstained if one.key == "load_imbalance")
    assert "not meant to be equal" in reason


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("replicas", "absent"), [(1, 0), (1, 1), (2, 5)])
def test_missing_stage_is_named_and_no_rank_is_accused(
    backend: str, replicas: int, absent: int, tmp_path: Path
) -> None:
    write_traces(tmp_path, Job("1F1B", 4, 8, {2: 1.5}, replicas=replicas), backend=backend)
    (tmp_path / f"rank{absent}.json").unlink()
    with ThreadPoolExecutor(1) as pool:
        report = analyze(str(tmp_path), executor=pool)
    assert across(report).pipeline_refused == (
        f"there is no trace of rank {absent}, with which they exchange messages: the stages of a pipeline are not known"
    )
    # The bubble in the collective at the end of a step is waiting, and no communication that could be hidden.
    assert named(report) == []
    assert not {"serial_communication", "communication_bound"} & {one.key for one in report.advice}


def test_lone_pipeline_rank_abstains_on_exposed_communication(tmp_path: Path) -> None:
    write_traces(tmp_path, Job("1F1B", 4, 8), backend="nccl")
    report = analyze(str(tmp_path / "rank3.json"))
    (reason,) = {one.reason for one in report.abstained if one.key == "serial_communication"}
    assert reason.startswith("the rank exchanges messages, and how long it waits in collectives for other stages")
    assert "serial_communication" not in {one.key for one in report.advice}


# -- what is not known ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_messages_without_their_peers_compare_no_ranks(backend: str, tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job("1F1B", 4, 8, {1: 1.6}), backend=backend, with_peers=False)
    assert (across(report).pipeline, named(report)) == (None, [])
    assert across(report).pipeline_refused == (
        "the ranks exchange messages, and the traces do not say with whom. With gloo, record with record_shapes=True; "
        "where ranks are numbered differently in several process groups, the peer stays unknown"
    )
    assert "straggler" in {one.key for one in report.abstained}


def imbalance_of(report: TraceReport) -> list[tuple[Sequence[int], str]]:
    return [(one.ranks, one.sentence) for one in report.advice if one.key == "load_imbalance"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_unequal_compute_of_equal_kernels_needs_no_messages(backend: str, tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job("1F1B", 4, 8, {1: 1.6}), backend=backend, with_peers=False)
    # 1.6 over the mean of 1, 1.6, 1 and 1.
    kernels = "operators" if backend == "gloo" else "kernels"
    ((ranks, sentence),) = imbalance_of(report)
    assert ranks == [1]
    assert sentence.startswith(
        f"Rank 1 computed 39 % longer than the ranks do on average, with about as many {kernels};"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_compute_is_no_imbalance_without_messages(backend: str, tmp_path: Path) -> None:
    report, _ = analyzed(tmp_path, Job("1F1B", 4, 8, jitter=0.05), backend=backend, with_peers=False)
    assert imbalance_of(report) == []


def halves_of(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Two products of half the length for each one; any other event as it is."""
    if event["name"] != "aten::mm":
        return [event]
    half_us = event["dur"] / 2
    return [{**event, "dur": half_us}, {**event, "dur": half_us, "ts": event["ts"] + half_us}]


def test_stages_with_other_kernels_need_messages_to_be_compared(tmp_path: Path) -> None:
    write_traces(tmp_path, Job("1F1B", 4, 8, {1: 1.6}), backend="gloo", with_peers=False)
    path = tmp_path / "rank1.json"
    found = json.loads(path.read_text())
    found["traceEvents"] = [half for one in found["traceEvents"] for half in halves_of(one)]
    path.write_text(json.dumps(found))
    report = analyze([str(tmp_path / f"rank{rank}.json") for rank in range(4)])
    assert imbalance_of(report) == []
    reason = next(one.reason for one in report.abstained if one.key == "load_imbalance")
    assert reason.startswith("the ranks exchange messages, and the traces do not say with whom")


def test_messages_of_other_steps_are_not_paired(tmp_path: Path) -> None:
    write_traces(tmp_path, Job("1F1B", 2, 4))
    moved = json.loads((tmp_path / "rank1.json").read_text())
    for event in moved["traceEvents"]:
        event["name"] = event["name"].replace("ProfilerStep#", "ProfilerStep#5")
    (tmp_path / "rank1.json").write_text(json.dumps(moved))
    report = analyze([str(tmp_path / f"rank{rank}.json") for rank in (0, 1)])
    assert across(report).pipeline is None
    assert "different steps" in (across(report).refused or "")
    assert named(report) == []


def message(op: str, peer: int | None, start_ns: int, tag: int | None = 0, step: int = 0) -> TracedMessage:
    return TracedMessage(op, peer, tag, 8, step, start_ns, 10, start_ns)


def test_messages_are_paired_by_order_within_tag_and_step() -> None:
    sends = [message("send", 1, 0, tag=7), message("send", 1, 10, tag=8), message("send", 1, 20, tag=7)]
    recvs = [message("recv", 0, 100, tag=7), message("recv", 0, 110, tag=7), message("recv", 0, 120, tag=8)]
    paired = pair_messages({0: sends, 1: recvs})
    assert sorted((one.send.start_ns, one.recv.start_ns) for one in paired.pairs) == [(0, 100), (10, 120), (20, 110)]


def test_messages_whose_numbers_differ_are_not_paired() -> None:
    paired = pair_messages({0: [message("send", 1, 0), message("send", 1, 1)], 1: [message("recv", 0, 5)]})
    assert (paired.pairs, paired.unpaired) == ([], 3)


def test_messages_to_ranks_that_are_not_here_are_no_error() -> None:
    assert pair_messages({0: [message("send", 1, 0)]}).unpaired == 0


def chains(by_rank: Mapping[int, Sequence[TracedMessage]]) -> object:
    return find_chains(by_rank, pair_messages(by_rank).pairs)


def test_ring_in_which_all_send_first_is_no_pipeline() -> None:
    ring = {rank: [message("send", (rank + 1) % 3, 0), message("recv", (rank - 1) % 3, 1)] for rank in range(3)}
    assert chains(ring) is None


def test_star_is_no_pipeline() -> None:
    star = {
        0: [message("send", 1, 0), message("send", 2, 1)], 1: [message("recv", 0, 2)], 2: [message("recv", 0, 2)],
    }  # fmt: skip
    assert chains(star) is None


def test_pipelines_of_different_lengths_are_not_compared() -> None:
    line = {
        0: [message("send", 1, 0)], 1: [message("recv", 0, 1), message("send", 2, 2)], 2: [message("recv", 1, 3)],
        3: [message("send", 4, 0)], 4: [message("recv", 3, 1)],
    }  # fmt: skip
    assert chains(line) is None


# -- merge ------------------------------------------------------------------------------------------------------------


def test_merge_draws_an_arrow_from_each_send_to_its_receive(tmp_path: Path) -> None:
    write_traces(tmp_path / "traces", Job("1F1B", 3, 4, steps=2))
    report = merge(str(tmp_path / "traces"), tmp_path / "merged.json")
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    messages = [event for event in events if event.get("cat") == "message"]
    # Of 2 steps: 4 microbatches forward and backward over 2 borders.
    assert len(messages) == 2 * (2 * 4 * 2 * 2)
    assert {event["name"] for event in messages} == {"rank 0 to 1", "rank 1 to 2", "rank 1 to 0", "rank 2 to 1"}
    assert report.arrow_count == 32 + 2 * 2  # and the barrier of each step, over three ranks
    by_id: dict[int, list[dict[str, Any]]] = {}
    for event in messages:
        by_id.setdefault(event["id"], []).append(event)
    assert all(
        flow[0]["ph"] == "s" and flow[1]["ph"] == "f" and flow[0]["ts"] <= flow[1]["ts"] for flow in by_id.values()
    )
