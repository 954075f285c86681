"""The keys of `rankscope demo --json`, which other programs read."""

import json

import msgspec

from rankscope.collector.demo.result import DemoResult, build_result
from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.records import Totals, WindowBreakdown
from tests.unit.collector.runs.run_snapshots import rank_of

MS = 1_000_000

RESULT_KEYS = ["run", "world_size", "steps", "ranks", "findings", "metrics_sample_count"]
RANK_KEYS = [
    "rank", "steps", "step_ns_median", "phases_ns", "own_ns_median", "compute_ratio", "communication_ratio",
    "overlap_ratio", "exposed_communication_ratio", "idle_ratio",
]  # fmt: skip
FINDING_KEYS = ["kind", "rank", "since_step", "slowdown_ratio", "cause", "sentence"]

CLOSED = Finding(
    kind="straggler", ranks=(0,), since_step=20, slowdown_ratio=1.5, cause="host_cpu", sentence="Rank 0 was slow.",
    run_slowdown_ratio=1.4, lost_rank_seconds=3.0, evidence={"own_ns": 1.0},
)  # fmt: skip
OPEN = Finding(
    kind="straggler", ranks=(1,), since_step=60, slowdown_ratio=2.0, cause="data_loading", sentence="Rank 1 is slow."
)


KNOWN = rank_of(
    0,
    run="demo",
    totals=Totals(steps=160),
    step_ns_median=100.0 * MS,
    phases_ns_median={"data": 10.0 * MS, "forward": 90.0 * MS},
    own_ns_median=80.0 * MS,
    breakdown=WindowBreakdown(
        first_step=0, step_count=1, window_ns=200, compute_ns=120, communication_ns=80, overlap_ns=20,
        exposed_communication_ns=60, copy_ns=10, idle_ns=10,
    ),
)  # fmt: skip
UNKNOWN = rank_of(1, run="demo", totals=Totals(steps=159))
RUN = RunSnapshot(
    run="demo", world_size=2, restart_count=0, ranks=(KNOWN, UNKNOWN), open_findings=(OPEN,), findings=(CLOSED, OPEN)
)


def written(result: DemoResult) -> dict[str, object]:
    """The file as another program reads it."""
    found = json.loads(msgspec.json.encode(result))
    assert isinstance(found, dict)
    return found


def test_keys_are_the_promised_ones() -> None:
    found = json.loads(msgspec.json.encode(build_result(RUN, 7)))
    assert list(found) == RESULT_KEYS
    assert [list(rank) for rank in found["ranks"]] == [RANK_KEYS] * 2
    assert [list(finding) for finding in found["findings"]] == [FINDING_KEYS] * 2


def test_result_has_the_longest_rank_and_the_samples() -> None:
    found = written(build_result(RUN, 7))
    assert [found[key] for key in ("run", "world_size", "steps", "metrics_sample_count")] == ["demo", 2, 160, 7]


def test_rank_has_medians_and_ratios() -> None:
    assert msgspec.to_builtins(build_result(RUN, 7).ranks[0]) == {
        "rank": 0,
        "steps": 160,
        "step_ns_median": 100.0 * MS,
        "phases_ns": {"data": 10.0 * MS, "forward": 90.0 * MS},
        "own_ns_median": 80.0 * MS,
        "compute_ratio": 0.6,
        "communication_ratio": 0.4,
        "overlap_ratio": 0.25,
        "exposed_communication_ratio": 0.3,
        "idle_ratio": 0.05,
    }


def test_unmeasured_values_are_null_not_zero() -> None:
    found = msgspec.to_builtins(build_result(RUN, 7).ranks[1])
    assert (found["rank"], found["steps"], found["phases_ns"]) == (1, 159, {})
    assert [found[key] for key in RANK_KEYS if key not in ("rank", "steps", "phases_ns")] == [None] * 7


def test_findings_of_the_whole_run_are_listed() -> None:
    assert [msgspec.to_builtins(found) for found in build_result(RUN, 7).findings] == [
        {
            "kind": "straggler", "rank": 0, "since_step": 20, "slowdown_ratio": 1.5, "cause": "host_cpu",
            "sentence": "Rank 0 was slow.",
        },
        {
            "kind": "straggler", "rank": 1, "since_step": 60, "slowdown_ratio": 2.0, "cause": "data_loading",
            "sentence": "Rank 1 is slow.",
        },
    ]  # fmt: skip


def test_run_without_ranks_and_findings_has_empty_lists() -> None:
    empty = RunSnapshot(run="demo", world_size=2, restart_count=0, ranks=())
    assert written(build_result(empty, 0)) == {
        "run": "demo", "world_size": 2, "steps": 0, "ranks": [], "findings": [], "metrics_sample_count": 0,
    }  # fmt: skip
