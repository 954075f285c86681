"""The report of a run: the object, the text, the page without scripts, the Parquet files."""

import html
import re
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import begin, resolve
from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.reports.run_page import render_page
from rankscope.collector.reports.run_report import RunReport, read_report, report_as_json
from rankscope.collector.reports.run_sections import merge_points, render_text
from rankscope.collector.reports.terminal_colors import Colors
from rankscope.collector.runs.checkpoints import Checkpoint, Checkpoints
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.storage.run_reader import CurvePoint, opening_run
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.errors import UnavailableError
from rankscope.measure.messages import Goodbye
from rankscope.measure.model_flops import FlopSum, StepFlops
from rankscope.measure.records import HostCopies, Totals
from tests.full_snapshot import full_snapshot
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.runs.kept_runs import WALL_S, S, interval_of, life_of, run_of, step_of

HOSTILE = "<script>alert('1')</script>\x1b[2J"


def keep(path: Path, run: str, *, node: str = "node-a", finding: Finding | None = None, steps: int = 80) -> None:
    """A store with one run of two ranks: rank 1 was slow, and finished; a run beside it has an incident of its own."""
    finding = finding or slow(1, lost_rank_seconds=3_600.0, suggestion="Look at its data loader.")
    batch = WriteBatch()
    for name in (run, "beside"):
        batch.put_run(run_of(name))
    batch.ranks[run, 0] = 0, life_of(run, 0, node=node)
    batch.ranks[run, 1] = 0, life_of(run, 1, node=node, said=Goodbye(sequence=10, reason="finished"))
    batch.stories[run] = SavedStory(findings=(finding,))
    for number in range(steps):
        batch.add_step(run, step_of(number, longest_ns=2 * S if number >= 60 else S))
    batch.add_interval(run, interval_of(WALL_S, steps=60.0, slowdown=1.0))
    batch.add_interval(run, interval_of(WALL_S + 60.0, steps=20.0, slowdown=2.0))
    incident = resolve(begin(1, run, finding, WALL_S + 60.0), "passed", WALL_S + 90.0, lost_rank_seconds=3_600.0)
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
        incidents.write([incident, begin(2, "beside", finding, WALL_S)], [])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a run `bert`."""
    path = tmp_path / "store.db"
    keep(path, "bert")
    return path


def report_of(path: Path, run: str = "bert") -> RunReport:
    return read_report(path, run)


def test_report_has_totals_ends_and_findings(path: Path) -> None:
    report = report_of(path)
    assert (report.world_size, report.attempts, report.steps, report.steps_kept) == (2, 1, 80, 80)
    assert (report.reports, report.reports_lost, report.steps_late) == (18, 2, 4)
    assert report.ends == {"finished": "1", "still up": "0"}
    assert (report.goodput.goodput_ratio, report.step_ns_median) == (0.7, S)
    assert [finding.sentence for finding in report.findings] == ["Rank 1 is slow."]
    assert [incident.id for incident in report.incidents] == [1]


def test_pipeline_layers_and_experts_of_the_run_are_facts(path: Path) -> None:
    (full,) = full_snapshot().runs
    batch = WriteBatch()
    batch.stories["bert"] = SavedStory(pipeline=full.pipeline, layers=full.layers, experts=full.experts)
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    report = report_of(path)
    assert (report.pipeline, report.layers, report.experts) == (full.pipeline, full.layers, full.experts)
    said = " ".join(render_text(report, 20).split())
    assert "stage 1 sets the pace: own time 86.0 ms per step" in said
    assert "rank 1: layer 1 of 2 (TransformerBlock)" in said
    assert "mesh_ep/0,1: rank 1 has 75.0 % of the load of 2 ranks, 1.50x the mean" in said


def test_copies_from_the_host_are_a_fact(path: Path) -> None:
    copies = HostCopies(count=1, duration_ns=4, exposed_ns=3, bytes=8, pageable_ns=4, pageable_bytes=8)
    batch = WriteBatch()
    batch.ranks["bert", 0] = (
        0,
        msgspec.structs.replace(life_of("bert", 0), totals=Totals(steps=80, window_ns=60, host_copies=copies)),
    )
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    said = "exposed 5.0 % of the time (2.0 GB/s); all from pageable memory"
    assert report_of(path).host_copies_said == said
    assert f"copies from the host {said}" in " ".join(render_text(report_of(path), 20).split())


def test_worst_rank_is_the_one_that_cost_most(path: Path) -> None:
    """Its slowdown is 1.0 over 60 steps and 2.0 over 20: 1.25."""
    first, second = report_of(path).worst_ranks
    assert (first.rank, first.lost_rank_seconds, first.slowdown_ratio, first.ended) == (1, 3_600.0, 1.25, "finished")
    assert (second.rank, second.lost_rank_seconds, second.slowdown_ratio, second.ended) == (0, 0.0, None, None)
    assert second.own_ns == 1.0


def test_json_is_the_whole_report(path: Path) -> None:
    assert msgspec.json.decode(report_as_json(path, "bert"), type=RunReport) == report_of(path)


def test_unknown_run_is_an_error_that_lists_the_runs(path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no run 'gpt' is known to .*\. It has '(bert|beside)'"):
        report_of(path, "gpt")


# -- for people -------------------------------------------------------------------------------------------------------


def test_text_has_every_part(path: Path) -> None:
    text = render_text(report_of(path), 20)
    verdict, cost, advice, _, head = text.splitlines()[:5]
    assert (verdict, cost) == (slow(1).headline, "  cost: 1.0 rank-hours so far")
    assert advice == "  do: Look at its data loader."
    assert head == "run bert: 2 ranks, 80 steps, 1.7 min since 2027-01-15 08:00:00 UTC, over"
    for said in (
        "goodput          70.0 % of 100.0 s",
        "reports          18, 2 lost; 4 steps came too late",
        "[straggler] host_cpu (rank 1): Rank 1 is slow.\n    do: Look at its data loader.\n    evidence: 1.0 rank-h",
        "[resolved] 1, warning, host_cpu, since 2027-01-15 08:01:00 UTC, for 30 s, passed (rank 1): Rank 1 is slow.",
        "lost in slow steps  10.0 s   10.0",
    ):
        assert said in text
    assert re.search(r"^   1  node-a     80     1\.250 +<0\.001 +<0\.001 +1\.00  finished$", text, re.MULTILINE)
    assert re.search(r"^      0  76-79 .* 1,000\.000  2,000\.000$", text, re.MULTILINE)


def test_report_without_a_finding_begins_with_that_or_a_failure(path: Path) -> None:
    plain = msgspec.structs.replace(report_of(path), findings=())
    assert render_text(plain, 20).startswith("No finding is stored of this run.\n\nrun bert: 2 ranks")
    crashed = msgspec.structs.replace(plain, end=RunEnd(reason="crashed", ranks={"crashed": 1}))
    assert render_text(crashed, 20).splitlines()[0].startswith("The run crashed")
    assert render_text(crashed, 20).splitlines()[1].startswith("  do: Read the line that the verdict names")
    assert "<strong>The run crashed" in render_page(crashed)


def test_verdict_of_a_report_is_bold_on_a_terminal_only(path: Path) -> None:
    on_terminal, piped = (render_text(report_of(path), 20, colors=Colors(are_on=on)) for on in (True, False))
    assert on_terminal.splitlines()[0] == f"\x1b[1m{slow(1).sentence}\x1b[0m"
    assert "\x1b" not in piped


def test_report_of_a_past_run_says_whose_it_was(tmp_path: Path) -> None:
    path, life = tmp_path / "store.db", life_of("bert", 0)
    identity = msgspec.structs.replace(life.hello.identity, slurm_job_id="4711", user="ada")
    batch = WriteBatch()
    batch.put_run(run_of("bert"))
    batch.ranks["bert", 0] = (
        0,
        msgspec.structs.replace(life, hello=msgspec.structs.replace(life.hello, identity=identity)),
    )
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    report = report_of(path)
    assert (report.origin.slurm_job_id, report.origin.user, report.origin.k8s_pod) == ("4711", "ada", None)
    assert re.search(r"origin +Slurm job 4711, user ada", render_text(report, 20))


def test_facts_have_mfu_of_the_last_minute_if_all_ranks_have_it(path: Path) -> None:
    batch = WriteBatch()
    flops = StepFlops(model=FlopSum(3e15, 10, 10 * S), source="declared", peak_flops_per_s=1e15)
    batch.ranks["bert", 0] = 0, msgspec.structs.replace(life_of("bert", 0), flops=flops)
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    assert (report_of(path).mfu_ratio, "MFU" in render_text(report_of(path), 20)) == (None, False)
    batch.ranks["bert", 1] = 0, msgspec.structs.replace(life_of("bert", 1), flops=flops)
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    assert report_of(path).mfu_ratio == pytest.approx(0.3)
    assert report_of(path).hfu_ratio is None
    assert "MFU              30.0 % in the last minute of steps" in render_text(report_of(path), 20)


@pytest.mark.parametrize(("bounded", "said"), [((), "40.0 %"), ((1,), "at most 40.0 %")])
def test_hfu_of_executed_flops_at_most_is_at_most(path: Path, bounded: tuple[int, ...], said: str) -> None:
    batch = WriteBatch()
    for rank in (0, 1):
        flops = StepFlops(
            executed=FlopSum(4e15, 10, 10 * S), peak_flops_per_s=1e15, executed_is_upper_bound=rank in bounded
        )
        batch.ranks["bert", rank] = 0, msgspec.structs.replace(life_of("bert", rank), flops=flops)
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    assert report_of(path).hfu_is_upper_bound == bool(bounded)
    assert f"HFU              {said} in the last minute of steps" in render_text(report_of(path), 20)


def test_marked_checkpoints_are_a_fact_and_in_the_json(path: Path) -> None:
    assert "checkpoints" not in render_text(report_of(path), 20)
    last = Checkpoint(attempt=0, step=60, wall_s=WALL_S, duration_ns=2 * S, rank=0)
    marked = Checkpoints(count=2, duration_ns=5 * S, latest=(last,))
    batch = WriteBatch()
    batch.stories["bert"] = SavedStory(checkpoints=marked)
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    assert re.search(r"checkpoints +the last of 2 in step 60 at ", render_text(report_of(path), 20))
    assert msgspec.json.decode(report_as_json(path, "bert"), type=RunReport).checkpoints == marked


def test_tables_have_at_most_top_rows(path: Path) -> None:
    text = render_text(report_of(path), 1)
    assert "  1 more row not shown: raise --top to see them" in text
    assert re.search(r"^      0  0-79 ", text, re.MULTILINE)


def test_unknown_values_of_a_run_are_marked() -> None:
    report = RunReport(
        run="new", world_size=2, restart_count=0, attempts=1, begun_wall_s=WALL_S, changed_wall_s=WALL_S, is_over=False,
        steps=0, steps_kept=0, step_ns_median=None, reports=0, reports_lost=0, steps_late=0, ends={},
        goodput=GoodputSnapshot(),
    )  # fmt: skip
    text = render_text(report, 20)
    assert "not over" in text
    for reason in ("No time yet.", "No step is in the history.", "None."):
        assert reason in text
    assert "<svg" not in render_page(report)


def test_points_are_merged_within_an_attempt_only() -> None:
    points = [
        CurvePoint(
            attempt=attempt, first_step=step, last_step=step, steps=1 + step, wall_s=step, median_ns=10.0 * step,
            longest_ns=step,
        )
        for attempt, step in ((0, 0), (0, 1), (0, 2), (1, 0))
    ]  # fmt: skip
    first, *_, last = merge_points(points, 2)
    assert (first.first_step, first.last_step, first.steps, first.longest_ns) == (0, 1, 3, 1)
    assert first.median_ns == pytest.approx((1 * 0.0 + 2 * 10.0) / 3)
    assert (last.attempt, last.steps) == (1, 1)
    assert merge_points([], 2) == []


# -- the page ---------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.fixture
def hostile_page(tmp_path: Path) -> str:
    """The page about a run whose every name is a script."""
    path = tmp_path / "hostile.db"
    finding = slow(1, cause=HOSTILE, sentence=HOSTILE, suggestion=HOSTILE, nodes=(HOSTILE,))
    keep(path, HOSTILE, node=HOSTILE, finding=finding)
    return render_page(report_of(path, HOSTILE))


def test_run_named_script_stays_a_name(hostile_page: str) -> None:
    tags = Tags(hostile_page)
    assert "script" not in tags.names
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert hostile_page.replace("<wbr>", "").count(html.escape("<script>alert('1')</script>")) >= 6
    assert "\x1b" not in hostile_page
    assert "default-src 'none'" in html.unescape(hostile_page)


def test_run_named_script_cannot_control_a_terminal(tmp_path: Path) -> None:
    keep(tmp_path / "store.db", HOSTILE, node=HOSTILE)
    assert "\x1b" not in render_text(report_of(tmp_path / "store.db", HOSTILE), 20)


def test_page_has_every_table_and_a_drawing_with_a_text(path: Path) -> None:
    page = render_page(report_of(path))
    for key in ("facts", "findings", "incidents", "ranks", "time", "curve"):
        assert f'<section id="{key}"' in page
        assert f'<a href="#{key}">' in page
    assert 'aria-label="Step time over the run, from 0 to 2.0 s: ' in page
    assert page.count("<polyline ") == 2
    assert "src=" not in page.replace("-src ", "")


# -- Parquet ----------------------------------------------------------------------------------------------------------


def write(path: Path, folder: str) -> tuple[str, str]:
    from rankscope.collector.storage.parquet_export import write_parquet  # noqa: PLC0415 - what it needs is an extra

    with opening_run(path, "bert") as history:
        return write_parquet(history, folder)


def test_steps_can_be_read_with_pandas(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    pandas = pytest.importorskip("pandas")
    steps, ranks = write(path, str(tmp_path / "out" / "bert"))
    table = pandas.read_parquet(steps)
    assert list(table.columns) == [
        "attempt", "step", "ranks", "median_ns", "longest_ns", "slowest_rank", "wall_s", "phase_data_ns",
        "phase_forward_ns",
    ]  # fmt: skip
    assert (len(table), table["longest_ns"].max(), table["wall_s"].iloc[7]) == (80, 2 * S, WALL_S + 7)
    of_ranks = pandas.read_parquet(ranks)
    assert of_ranks.groupby("rank")["steps"].sum().to_dict() == {0: 80, 1: 80}
    assert of_ranks["slowdown_ratio"].isna().tolist() == [True, False, True, False]
    assert of_ranks["begin_wall_s"].iloc[0] == WALL_S


def test_files_can_be_queried_with_duckdb(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    steps, _ = write(path, str(tmp_path))
    query = f"SELECT count(*), max(phase_forward_ns) FROM read_parquet('{steps}') WHERE step >= 60"  # noqa: S608
    assert duckdb.sql(query).fetchall() == [(20, 900_000_000)]


def test_url_is_written_to_and_the_run_is_named_in_the_file(path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    import fsspec  # noqa: PLC0415 - an extra
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - an extra

    steps, _ = write(path, "memory://history/bert/")
    assert steps == "memory://history/bert/steps.parquet"
    with fsspec.open(steps, "rb") as file:
        assert ParquetFile(file).schema_arrow.metadata[b"rankscope.run"] == b"bert"


@pytest.mark.parametrize("folder", ["/proc/nowhere", "no-such-protocol://x"])
def test_unwritable_output_is_an_error(path: Path, folder: str) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    with pytest.raises(UnavailableError, match=f"cannot be written to {folder}: "):
        write(path, folder)
