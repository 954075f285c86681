"""Sections of reports written by hand."""

from typing import Any

import msgspec
import pytest

from rankscope.collector.reports.trace_cells import MISSING, Section, amount, printable
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.reports.trace_text import headline, render_text
from rankscope.collector.traces.report import (
    Abstention,
    Advice,
    CollectiveRow,
    CollectiveSizeRow,
    CrossRank,
    DeviceStep,
    FileError,
    KernelRow,
    OperatorRow,
    RangeRow,
    RankReport,
    Signs,
    StepReport,
    TraceFinding,
    TraceReport,
)

MS = 1_000_000
WINDOW: dict[str, Any] = {
    "window_ns": 200 * MS, "compute_ns": 100 * MS, "communication_ns": 60 * MS, "overlap_ns": 20 * MS,
    "exposed_communication_ns": 40 * MS, "copy_ns": 10 * MS, "idle_ns": 50 * MS, "busy_ratio": 0.75,
    "overlap_ratio": None,
}  # fmt: skip
STEP = StepReport(step=3, start_ns=0, kernel_count=0, launched=None, **WINDOW)


def rank_of(rank: int | None, **known: Any) -> RankReport:
    tables = (
        "steps", "devices", "event_types", "model", "collectives", "operators", "kernels", "copies", "user_ranges",
        "synchronizations", "memory", "warnings",
    )  # fmt: skip
    fields: dict[str, Any] = dict.fromkeys(tables, ()) | WINDOW
    fields |= {
        "rank": rank, "file": f"run/rank{rank}.json.gz", "device": "CPU", "world_size": 2, "backend": "gloo",
        "host": None, "start_ns": 0, "kernel_count": 0, "event_count": 9, "timeline": None, "signs": Signs(),
    }  # fmt: skip
    return RankReport(**fields | known)


def across(**known: Any) -> CrossRank:
    fields: dict[str, Any] = {
        "collectives": [], "wait_ns": {"0": 30 * MS, "1": 0}, "transfer_ns": {"0": 10 * MS, "1": 10 * MS},
        "findings": [], "lower_bound": False, "refused": None, "end_disagreement_ns": None,
    }  # fmt: skip
    return CrossRank(**fields | known)


def report_of(*ranks: RankReport, **known: Any) -> TraceReport:
    fields: dict[str, Any] = {"cross_rank": None, "advice": [], "abstained": [], "errors": []} | known
    return TraceReport(ranks=list(ranks), **fields)


def kernel(name: str, total_ms: int, count: int = 1) -> KernelRow:
    return KernelRow(
        name=name, count=count, total_ns=total_ms * MS, mean_ns=total_ms * MS // count, min_ns=0, max_ns=total_ms * MS,
        pct=0.0, is_communication=False, uses_tensor_cores=False,
    )  # fmt: skip


def section(key: str, report: TraceReport, top: int = 20, rank_rows_max: int | None = None) -> Section:
    return next(one for one in build_sections(report, top, rank_rows_max) if one.key == key)


def shown(one: Section) -> list[list[str]]:
    return [[cell.text for cell in row] for row in one.rows]


SLOW = TraceFinding(
    kind="straggler", rank=7, ranks=[7], slowdown_ratio=2.0, cause="host_cpu", sentence="Rank 7 is slow."
)


def test_parts_of_a_rank_sum_to_a_hundred_per_cent() -> None:
    # Of 200 ms: 100 - 20 of computing alone, 20 of both, 40 of communication alone, 50 idle + 10 copying.
    assert shown(section("ranks", report_of(rank_of(0)))) == [
        [
            "0",
            "200.000",
            "80.000",
            "40.0",
            "20.000",
            "10.0",
            "40.000",
            "20.0",
            "60.000",
            "30.0",
            MISSING,
            "rank0.json.gz",
        ]
    ]


def test_each_step_has_its_line() -> None:
    assert [row[:3] for row in shown(section("steps", report_of(rank_of(0, steps=[STEP]))))] == [["0", "3", "200.000"]]


def test_work_launched_on_a_cpu_is_not_shown_as_none_at_all() -> None:
    assert shown(section("steps", report_of(rank_of(0, steps=[STEP]))))[0][-1] == MISSING


def test_waiting_is_a_share_of_waiting_and_transfer() -> None:
    rows = shown(section("waiting", report_of(rank_of(0), rank_of(1), cross_rank=across())))
    assert rows == [
        ["0", "30.000", "10.000", "75.0", "0", "0.000", "0.000"],
        ["1", "0.000", "10.000", "0.0", "0", "0.000", "0.000"],
    ]


def test_refused_matching_is_in_verdict_and_waiting_table() -> None:
    report = report_of(rank_of(0), cross_rank=across(wait_ns=None, transfer_ns=None, refused="the traces differ"))
    assert "the traces differ" in section("waiting", report).reason
    assert "the traces differ" in str(shown(section("verdict", report)))


def test_missing_ranks_make_the_waiting_a_lower_bound() -> None:
    said = str(shown(section("verdict", report_of(rank_of(0), cross_rank=across(lower_bound=True)))))
    assert "Ranks are missing: there may have been more waiting than is shown." in said


def test_unknown_number_of_ranks_is_not_called_missing_ranks() -> None:
    report = report_of(rank_of(0, world_size=None), cross_rank=across(lower_bound=True))
    said = str(shown(section("verdict", report)))
    assert "do not say how many ranks there were; if some are missing, there may have been more waiting" in said


def test_zeros_of_a_trace_without_work_are_no_measurements() -> None:
    unnamed = section("verdict", report_of(rank_of(None, window_ns=0)))
    assert "Traces that name no rank have no work of a known device" in str(shown(unnamed))
    one = section("verdict", report_of(rank_of(0), rank_of(1, window_ns=0)))
    assert "The trace of rank 1 has no work of a known device" in str(shown(one))
    several = section("verdict", report_of(rank_of(0), *(rank_of(rank, window_ns=0) for rank in (1, 2))))
    assert "The traces of ranks 1-2 have no work of a known device" in str(shown(several))
    assert "no work" not in str(shown(section("verdict", report_of(rank_of(0)))))


def test_ranks_without_steps_are_not_called_ranks_of_other_steps() -> None:
    without = report_of(rank_of(0), rank_of(1), cross_rank=across())
    assert "There are no steps: whether one is slow is not known." in str(shown(section("verdict", without)))
    others = report_of(rank_of(0, steps=[STEP]), rank_of(1), cross_rank=across())
    assert "The ranks have no step in common: whether one is slow" in str(shown(section("verdict", others)))


def test_verdict_has_findings_then_advice_then_file_errors() -> None:
    advice = Advice(
        key="k", severity="warning", ranks=[0, 1], sentence="S.", action="A.", evidence={"x": 0.25, "n": None}
    )
    report = report_of(
        rank_of(0),
        cross_rank=across(findings=[SLOW]),
        advice=[advice],
        errors=[FileError(file="b.json", reason="cut off")],
    )
    assert shown(section("verdict", report)) == [
        ["finding", "host_cpu", "7", "Rank 7 is slow.", MISSING, "slowdown 2"],
        ["warning", "k", "0-1", "S.", "A.", "x 0.25, n -"],
        ["file error", "b.json", MISSING, "cut off", MISSING, MISSING],
    ]


def test_rules_that_abstained_follow_the_verdict_and_are_counted() -> None:
    abstained = [Abstention(key="memory", reason="no memory events"), Abstention(key="k", reason="no steps")]
    report = report_of(rank_of(0), abstained=abstained)
    assert [one.key for one in build_sections(report, top=5)][:2] == ["verdict", "not_judged"]
    found = section("not_judged", report, top=1)
    assert found.folded_as == "2 rules could not judge, and why"
    assert (shown(found), found.left_out) == (
        [["abstained", "memory", MISSING, "no memory events", MISSING, MISSING]], 1
    )  # fmt: skip


def advice_of(sentence: str) -> Advice:
    return Advice(key="k", severity="warning", ranks=[7], sentence=sentence, action="Look.", evidence={})


def test_finding_repeated_by_advice_is_listed_once_and_first() -> None:
    advice = [advice_of("Else."), advice_of(SLOW.sentence)]
    rows = shown(section("verdict", report_of(rank_of(7), cross_rank=across(findings=[SLOW]), advice=advice)))
    assert [(row[0], row[3]) for row in rows] == [("warning", "Rank 7 is slow."), ("warning", "Else.")]


def test_several_findings_repeated_by_one_advice_are_listed_once() -> None:
    other = msgspec.structs.replace(SLOW, rank=5, sentence="Rank 5 took twice as long as its peers.")
    advice = [advice_of("Else."), advice_of(f"{SLOW.sentence} {other.sentence}")]
    rows = shown(section("verdict", report_of(rank_of(7), cross_rank=across(findings=[SLOW, other]), advice=advice)))
    assert [row[3] for row in rows] == [f"{SLOW.sentence} {other.sentence}", "Else."]


def test_findings_are_never_cut_off() -> None:
    report = report_of(rank_of(0), cross_rank=across(findings=[SLOW, SLOW, SLOW]))
    assert (len(section("verdict", report, top=1).rows), section("verdict", report, top=1).left_out) == (3, 0)


def test_kernels_are_summed_over_ranks_with_the_largest_named() -> None:
    # 3 + 9 = 12 of 16 ms are 75 %; 12 ms over 1 + 3 calls are 3,000 us each.
    ranks = rank_of(0, kernels=[kernel("gemm", 3), kernel("relu", 4)]), rank_of(1, kernels=[kernel("gemm", 9, count=3)])
    first = shown(section("kernels", report_of(*ranks)))[0]
    assert first == ["gemm", "4", "12.000", "75.0", "3,000.0", "0.0", "9,000.0", "-", "-", "no", "2", "9.000", "1"]


def test_report_of_one_rank_has_no_comparing_columns() -> None:
    heads = [column.head for column in section("kernels", report_of(rank_of(0, kernels=[kernel("a", 1)]))).columns]
    assert "on rank" not in heads


def test_ranges_have_host_time_per_step_where_steps_are_known() -> None:
    # Rank 0 has the range for 6 + 2 ms in 2 steps, rank 1 for 1 ms in 1 step: 9 ms in 3 steps.
    def ranges(*host_ms: int) -> list[RangeRow]:
        return [RangeRow(name="attend", count=2, host_total_ns=one * MS, device_total_ns=None) for one in host_ms]

    ranks = [rank_of(0, user_ranges=ranges(6, 2), steps=[STEP, STEP]), rank_of(1, user_ranges=ranges(1), steps=[STEP])]
    known = section("user_ranges", report_of(*ranks))
    assert (
        dict(zip([column.head for column in known.columns], shown(known)[0], strict=True))["host ms a step"] == "3.000"
    )
    without = section("user_ranges", report_of(ranks[0], rank_of(1, user_ranges=ranges(1))))
    assert "host ms a step" not in [column.head for column in without.columns]


def test_rows_beyond_the_top_are_counted() -> None:
    kernels = section("kernels", report_of(rank_of(0, kernels=[kernel(f"k{n}", n) for n in range(1, 6)])), top=2)
    assert ([row[0].text for row in kernels.rows], kernels.left_out) == (["k5", "k4"], 3)


def test_slow_rank_is_kept_when_ranks_are_left_out() -> None:
    report = report_of(*map(rank_of, range(10)), cross_rank=across(findings=[SLOW]))
    ranks = section("ranks", report, top=2)
    assert ([row[0].text for row in ranks.rows], ranks.left_out) == (["0", "7"], 8)


def test_tables_by_rank_can_be_longer_than_those_by_name() -> None:
    assert len(section("ranks", report_of(*map(rank_of, range(10))), top=2, rank_rows_max=5).rows) == 5


def test_device_time_is_missing_where_there_is_no_device() -> None:
    row = OperatorRow(
        name="aten::mm", count=2, host_total_ns=4 * MS, host_self_ns=MS, device_total_ns=0, device_self_ns=0
    )
    rows = shown(section("operators", report_of(rank_of(0, operators=[row]))))
    assert rows == [["aten::mm", "2", MISSING, MISSING, "1.000", "4.000"]]


def collective(transfer_ms: int | None, gb_per_s: float | None) -> CollectiveRow:
    return CollectiveRow(
        group="dp", group_size=2, op="all_reduce", dtype=None, count=1, bytes=8, total_ns=9 * MS, mean_ns=9 * MS,
        transfer_ns=transfer_ms and transfer_ms * MS, bus_bandwidth_bytes_per_s=gb_per_s and gb_per_s * 1e9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("other", "transfer", "bandwidth"),
    # (1 ms at 10 GB/s and 3 ms at 2 GB/s) are 16 MB in 4 ms.
    [((3, 2.0), "4.000", "4.00"), ((None, None), MISSING, MISSING)],
)
def test_transfer_and_bandwidth_need_every_rank(
    other: tuple[int | None, float | None], transfer: str, bandwidth: str
) -> None:
    ranks = rank_of(0, collectives=[collective(1, 10.0)]), rank_of(1, collectives=[collective(*other)])
    row = shown(section("collectives", report_of(*ranks)))[0]
    assert (row[6], row[9]) == (transfer, bandwidth)


def test_same_warning_of_many_ranks_is_one_line() -> None:
    ranks = [rank_of(rank, warnings=["no steps"]) for rank in (0, 1, 2, 5)]
    assert shown(section("warnings", report_of(*ranks))) == [["no steps", "4", "0-2, 5"]]


def test_long_warning_is_wrapped_and_not_cut() -> None:
    text = render_text(report_of(rank_of(0, warnings=[" ".join(["word"] * 60)]), rank_of(1)), 20)
    assert text.count("word") == 60
    assert text.endswith("word (files 1, ranks 0)")


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (None, "One rank's trace: waiting shows only where all ranks are compared."),
        (across(refused="no numbers"), "Waiting could not be separated from transfer: no numbers"),
        (across(), "No rank waited for another one."),
    ],
)
def test_table_without_waits_says_why(known: CrossRank | None, reason: str) -> None:
    assert section("waits", report_of(rank_of(0), cross_rank=known)).reason == reason


def test_section_without_rows_has_a_reason() -> None:
    assert all(one.reason for one in build_sections(report_of(), top=5) if not one.rows)


def test_memory_that_was_not_recorded_comes_with_the_cure() -> None:
    assert "profile_memory=True" in section("memory", report_of(rank_of(0))).reason


def test_nonzero_value_is_never_shown_as_zero() -> None:
    assert [amount(value, 1_000, 1).text for value in (0, 1, -1, None)] == ["0.0", "<0.1", ">-0.1", MISSING]


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\r\nb", "a\u202eb", "\ud800"])
def test_names_cannot_control_a_terminal(name: str) -> None:
    assert printable(name).isascii()
    assert printable(name).isprintable()


def test_lines_fit_around_a_very_long_kernel_name() -> None:
    text = render_text(report_of(rank_of(0, kernels=[kernel("k" * 1_000, 5)])), top=5, width=110)
    assert max(map(len, text.splitlines())) <= 110


def test_columns_move_together_around_wide_numbers() -> None:
    # Two ranks of 10**10 bytes in 10**6 ms make the table of collectives wider than 120 columns with gaps of two.
    large = msgspec.structs.replace(collective(1, 10.0), bytes=10**10, total_ns=10**12)
    text = render_text(report_of(rank_of(0, collectives=[large]), rank_of(1, collectives=[large])), top=5)
    assert max(map(len, text.splitlines())) <= 120
    assert "all_reduce dp " in text, "as wide as before"


def test_text_counts_the_rows_left_out() -> None:
    report = report_of(rank_of(0, kernels=[kernel(f"k{n}", n) for n in range(1, 6)]))
    assert "3 more rows not shown: raise --top to see them" in render_text(report, top=2)


def test_every_section_is_in_the_text() -> None:
    text = render_text(msgspec.structs.replace(report_of(), errors=[FileError(file="x", reason="y")]), top=5)
    assert all(one.title.upper() in text for one in build_sections(report_of(), top=5))


# -- the text ---------------------------------------------------------------------------------------------------------


def test_one_step_of_eight_ranks_is_one_step() -> None:
    ranks = [rank_of(rank, steps=[STEP], world_size=8) for rank in range(8)]
    assert headline(report_of(*ranks)).startswith("8 ranks of 8, 1 step, 72 events; ")


def test_step_by_the_devices_clock_has_a_row_of_its_own() -> None:
    on_device = DeviceStep(start_ns=7 * MS, kernel_count=2, **WINDOW)
    ranks = report_of(rank_of(0, steps=[msgspec.structs.replace(STEP, on_device=on_device), STEP]))
    assert [(row[:3], row[-1]) for row in shown(section("device_steps", ranks))] == [(["0", "3", "200.000"], "7.000")]


def test_collectives_by_size_say_over_what_their_bandwidth_is() -> None:
    row = CollectiveSizeRow(
        op="all_reduce", group="default_pg", group_size=2, dtype="Float", size_from_bytes=1 << 20,
        size_to_bytes=1 << 21, is_inside_node=False, count=4, total_ns=MS, duration_min_ns=1_000,
        duration_median_ns=2_000, duration_max_ns=3_000, matched_count=0, skew_min_ns=None, skew_median_ns=None,
        skew_max_ns=None, bandwidth_from="durations", algorithm_bandwidth_min_bytes_per_s=1e9,
        algorithm_bandwidth_median_bytes_per_s=2e9, algorithm_bandwidth_max_bytes_per_s=3e9,
        bus_bandwidth_min_bytes_per_s=1e9, bus_bandwidth_median_bytes_per_s=2e9, bus_bandwidth_max_bytes_per_s=3e9,
    )  # fmt: skip
    assert shown(section("collective_sizes", report_of(rank_of(0), collective_sizes=[row]))) == [
        ["all_reduce", "default_pg", "2", "1-2 MiB", "several", "4", "2.0", "3.0", MISSING, MISSING, "2.00", "1.00",
         "2.00", "3.00", "durations"]
    ]  # fmt: skip
