"""The lines in which a rank's main thread blocks: one table in the status of the rank, in the report, on its page."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.publish.api.rank_views import show_rank
from rankscope.collector.reports.run_page import render_page
from rankscope.collector.reports.run_report import RunReport, read_report
from rankscope.collector.reports.run_sections import render_text
from rankscope.collector.reports.status_text import render_one_rank
from rankscope.collector.runs.ratio_basis import RatioBasis
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.records import Synchronization, WindowSynchronizations
from tests.unit.collector.runs.kept_runs import life_of, run_of
from tests.unit.collector.runs.run_snapshots import rank_of
from tests.unit.collector.runs.run_stories import Story

WAITS = WindowSynchronizations(
    first_step=3,
    step_count=4,
    kinds=(
        Synchronization(
            call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (main)", count=6,
            waits_ns=40_000_000, idle_ns=10_000_000,
        ),
        Synchronization(call="cudaMemcpy", count=1, waits_ns=4_000_000),
    ),
)  # fmt: skip
ROWS = [
    # Sums of 4 steps: 6 calls are 1.5 a step, 40 ms are 10.
    "1 train.py:24 (main) aten::item cudaStreamSynchronize 1.5 10.000 2.500",
    "1 line not known not recorded cudaMemcpy 0.2 1.000 0.000",
]
PRESENT = RatioBasis(absent=None)


def snapshot_of(rank: RankSnapshot) -> RunSnapshot:
    run = Story(2).join().snapshot()
    return msgspec.structs.replace(run, ranks=(rank,))


def read_rows(text: str) -> list[str]:
    """Return the rows of the table, each with single spaces."""
    _, _, table = text.partition("BLOCKING LINES\n")
    rows = [" ".join(line.split()) for line in table.partition("\n\n")[0].splitlines()]
    return [row for row in rows if row.startswith("1 ")]


@pytest.fixture
def report(tmp_path: Path) -> RunReport:
    """Return the report of a run in a store, whose rank 1 has told what it blocks in, and whose rank 0 has no GPU."""
    path = tmp_path / "store.db"
    batch = WriteBatch()
    batch.put_run(run_of("bert"))
    batch.ranks["bert", 0] = 0, life_of("bert", 0)
    batch.ranks["bert", 1] = 0, msgspec.structs.replace(life_of("bert", 1), synchronizations=WAITS)
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch)
    return read_report(path, "bert")


def test_status_report_and_api_say_the_same_of_a_rank(report: RunReport) -> None:
    rank = rank_of(1, synchronizations=WAITS, ratio_basis=PRESENT)
    answer = show_rank(snapshot_of(rank), 1, None)
    assert answer is not None
    assert [one.blocking_calls for one in report.worst_ranks] == [answer.blocking_calls, None]
    assert read_rows(render_text(report, 20)) == ROWS
    assert read_rows(render_one_rank(snapshot_of(rank), rank, None)) == ROWS
    page = render_page(report)
    assert "Blocking lines" in page
    assert "train.py:24 (main)" in page


def test_rank_that_has_told_none_has_no_table(report: RunReport) -> None:
    silent = [msgspec.structs.replace(one, blocking_calls=None) for one in report.worst_ranks]
    assert "BLOCKING" not in render_text(msgspec.structs.replace(report, worst_ranks=tuple(silent)), 20)
    for rank in (
        rank_of(1, ratio_basis=PRESENT),
        rank_of(1, synchronizations=WAITS, ratio_basis=RatioBasis(absent="windows have ended")),
    ):
        assert "BLOCKING" not in render_one_rank(snapshot_of(rank), rank, None)
