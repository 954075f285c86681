"""What a notebook shows of a trace report, and its tables as plain rows."""

from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.reports.notebook_view import ROWS_MAX, TEXT_MAX, render_fragment
from rankscope.collector.traces import analyze
from rankscope.collector.traces.data_frames import build_tables
from rankscope.collector.traces.report import KernelRow, Signs, TraceReport
from tests.unit.collector.reports.test_trace_page import hostile_report, rank_of, report_of

GLOO = Path(__file__).parents[3] / "traces" / "gloo-2.13"
SLOW, CLEAN = str(GLOO / "ddp_2r_slow1_data"), str(GLOO / "ddp_2r_clean")


class Parsed(HTMLParser):
    """The tags of a fragment, those that are not closed, its texts, and the titles of its open sections."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.unclosed: list[str] = []
        self.texts: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.unclosed.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def kernel(name: str) -> KernelRow:
    return KernelRow(
        name=name, count=1, total_ns=1, mean_ns=1, min_ns=1, max_ns=1, pct=100.0, is_communication=False,
        uses_tensor_cores=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def report() -> TraceReport:
    return analyze(SLOW, shapes=True)


def test_notebook_shows_the_verdict_first(report: TraceReport) -> None:
    text = report._repr_html_()
    parsed = Parsed(text)
    assert parsed.unclosed == []
    assert text.index("2 ranks of 2, 3 steps") < text.index("Rank 1 (vm): 1.63x slower") < text.index("Operators")
    assert text.count("<details open>") == 1


def test_fragment_has_no_script_style_or_handler() -> None:
    parsed = Parsed(render_fragment(hostile_report()))
    assert set(parsed.tags) & {"script", "img", "style", "link", "iframe"} == set()
    assert parsed.handlers == []
    assert any("<script>alert(1)</script>" in text for text in parsed.texts), "it is shown as text"


def test_rows_and_texts_are_bounded() -> None:
    names = [f"{place:03}{'x' * 5000}" for place in range(50)]
    text = render_fragment(report_of(rank_of(0, kernels=[kernel(name) for name in names])))
    assert text.count("<tr>", text.index("<summary>Kernels")) == 1 + ROWS_MAX
    assert "<p>40 more not shown</p>" in text
    assert max(map(len, Parsed(text).texts)) <= max(TEXT_MAX, 500)


def test_tables_without_rows_are_left_out() -> None:
    assert "<summary>Memory" not in render_fragment(report_of(rank_of(0)))


def test_ipython_prints_one_line(report: TraceReport) -> None:
    said: list[str] = []

    class Printer:
        text = said.append

    report._repr_pretty_(Printer, False)
    (line,) = said
    assert line.startswith("<TraceReport: 2 ranks of 2, 3 steps, ")


# -- plain rows -------------------------------------------------------------------------------------------------------


def test_every_list_of_the_report_is_a_table(report: TraceReport) -> None:
    tables = build_tables(report)
    rank = report.ranks[0]
    lists = {name for name in rank.__struct_fields__ if isinstance(getattr(rank, name), list)}
    assert {"operator_shapes", "launch_queue", "idle_time", "warnings"} < lists < tables.keys()
    assert {"advice", "abstained", "errors", "collective_sizes"} < tables.keys()
    rows = [(rank.rank, row.name, row.shapes) for rank in report.ranks for row in rank.operator_shapes or ()]
    assert [(row["rank"], row["name"], row["shapes"]) for row in tables["operator_shapes"]] == rows


def test_comparison_of_ranks_has_tables(report: TraceReport) -> None:
    tables = build_tables(report)
    assert [row["rank"] for row in tables["findings"]] == [1]
    assert [row["is_slow"] for row in tables["standings"]] == [False, True]
    assert report.cross_rank is not None
    assert len(tables["matched_collectives"]) == len(report.cross_rank.collectives) > 0
    assert len(tables["waits"]) == len(report.cross_rank.waits) > 0
    assert tables["pipeline_stages"] == []


def test_figures_of_ranks_are_single_values(report: TraceReport) -> None:
    assert {type(value) for row in build_tables(report)["ranks"] for value in row.values()} <= {
        int,
        float,
        str,
        type(None),
    }


def test_warnings_and_signs_have_the_rank_in_each_row() -> None:
    tables = build_tables(report_of(rank_of(3, warnings=["a", "b"]), rank_of(4)))
    assert tables["warnings"] == [{"rank": 3, "warning": "a"}, {"rank": 3, "warning": "b"}]
    assert tables["signs"] == [{"rank": rank, **msgspec.to_builtins(Signs())} for rank in (3, 4)]


def test_comparison_with_other_traces_has_tables() -> None:
    report = analyze(SLOW, against=CLEAN)
    rows = build_tables(report)["difference_operators"]
    assert report.comparison is not None
    assert len(rows) == len(next(table.rows for table in report.comparison.tables if table.key == "operators"))
