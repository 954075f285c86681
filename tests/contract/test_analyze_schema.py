"""The JSON of `rankscope analyze --json` has a schema in the repository, and keeps to it.

    python -m tests.contract.test_analyze_schema

writes the schema anew after a change of the report's classes.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.column_table import encode_table
from rankscope.collector.traces.report import SCHEMA, TraceReport
from tests.contract.schema_text import settle

ROOT = Path(__file__).parents[2]
SCHEMA_FILE = ROOT / "docs" / "analyze.schema.json"
TRACES = ROOT / "tests" / "traces"
BREAKDOWN = {
    "window_ns", "compute_ns", "communication_ns", "overlap_ns", "exposed_communication_ns", "copy_ns", "idle_ns",
    "busy_ratio", "overlap_ratio",
}  # fmt: skip


def make_schema() -> str:
    schema = {"title": "rankscope analyze --json", **msgspec.json.schema(TraceReport)}
    settle(schema["$defs"])
    return json.dumps(schema, indent=1) + "\n"


@cache
def written(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(analyze(str(TRACES / path))))
    return found


def test_schema_in_the_repository_is_that_of_the_code() -> None:
    assert SCHEMA_FILE.read_text() == make_schema(), "python -m tests.contract.test_analyze_schema"


@pytest.mark.parametrize(
    "path", ["v100_dlrm_8ranks_r*.json.gz", "gloo-2.13/ddp_2r_slow1_data", "h100_bert_small.json.gz"]
)
def test_what_is_written_keeps_to_the_schema(path: str) -> None:
    jsonschema.validate(written(path), json.loads(SCHEMA_FILE.read_text()))


def test_tables_that_are_asked_for_keep_to_the_schema_too() -> None:
    report = analyze(
        str(TRACES / "v100_dlrm_8ranks_r*.json.gz"),
        critical_path=True, shorten={"gemm": 0.5}, roofline=True, all_to_all=True, nest=True, launches=True,
    )  # fmt: skip
    written_report = json.loads(msgspec.json.encode(report))
    assert written_report["critical_path"]["steps"]
    assert written_report["critical_path"]["shortened"]["steps"]
    assert written_report["ranks"][0]["roofline"]
    assert written_report["ranks"][0]["range_kernels"]
    assert written_report["ranks"][0]["kernel_launches"]
    assert written_report["all_to_all"]["ranks"] == []  # these traces describe no kernel
    jsonschema.validate(written_report, json.loads(SCHEMA_FILE.read_text()))


def test_tables_of_columns_keep_to_the_schema_too() -> None:
    path = str(TRACES / "h100_bert_small.json.gz")
    report = analyze(path, allocations=True, memory_between="0ms:", arguments=True)
    written_report = json.loads(msgspec.json.encode(report, enc_hook=encode_table))
    rank = written_report["ranks"][0]
    assert (len(rank["allocations"]), rank["memory_stretch_operators"] != []) == (118, True)
    jsonschema.validate(written_report, json.loads(SCHEMA_FILE.read_text()))


def test_comparison_keeps_to_the_schema_too() -> None:
    report = analyze(
        str(TRACES / "gloo-2.13/ddp_2r_slow1_data"), against=str(TRACES / "gloo-2.13/ddp_2r_clean"), calls=True
    )
    written_report = json.loads(msgspec.json.encode(report))
    assert written_report["comparison"]["tables"]
    assert written_report["comparison"]["calls"]["rows"]
    jsonschema.validate(written_report, json.loads(SCHEMA_FILE.read_text()))
    assert {"difference_operators", "difference_ranges"} <= report.to_pandas().keys()


def test_keys_that_users_rely_on_are_there() -> None:
    report = written("v100_dlrm_8ranks_r*.json.gz")
    assert (report["schema"], SCHEMA) == (1, 1)
    assert {"ranks", "cross_rank", "advice", "errors"} <= report.keys()
    rank = report["ranks"][0]
    assert {
        "rank",
        "file",
        "device",
        "kernel_count",
        "steps",
        "kernels",
        "collectives",
        "synchronizations",
        "warnings",
    } <= rank.keys()
    assert rank.keys() >= BREAKDOWN <= rank["steps"][0].keys()
    assert {"name", "count", "total_ns", "mean_ns", "min_ns", "max_ns"} <= rank["kernels"][0].keys()
    assert {"group", "group_size", "op", "count", "bytes", "total_ns"} <= rank["collectives"][0].keys()
    assert {"name", "count", "total_ns", "operator", "source"} <= rank["synchronizations"][0].keys()
    across = report["cross_rank"]
    assert {"collectives", "wait_ns", "transfer_ns", "findings"} <= across.keys()
    assert {
        "group",
        "sequence",
        "op",
        "bytes",
        "ranks",
        "transfer_ns",
        "wait_ns",
        "late_rank",
        "lateness_ns",
    } <= across["collectives"][0].keys()


def test_what_does_not_apply_is_null_and_not_zero() -> None:
    report = written("h100_bert_small.json.gz")
    assert report["cross_rank"] is None, "one rank has nobody to wait for"
    assert report["ranks"][0]["overlap_ratio"] is None, "no communication, nothing to overlap"


def test_tables_become_data_frames_with_the_rank_in_each_row() -> None:
    frames = analyze(str(TRACES / "gloo-2.13/ddp_2r_clean")).to_pandas()
    assert list(frames["ranks"]["rank"]) == [0, 1]
    assert list(frames["steps"]["rank"]) == [0, 0, 0, 1, 1, 1]
    assert frames["steps"]["window_ns"].dtype.kind == "i"
    assert list(frames["collective_sizes"]["count"]) == [42]


if __name__ == "__main__":
    SCHEMA_FILE.write_text(make_schema())
