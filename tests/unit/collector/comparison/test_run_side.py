"""Which steps and intervals of a store are compared, and what is refused."""

import math
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.comparison.run_side import (
    STEPS_MIN,
    STEPS_READ_MAX,
    RunSide,
    Selection,
    parse_selections,
    read_side,
)
from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.steps.collective_totals import CollectiveCounts, KindMeans, KindTime
from rankscope.collector.steps.equal_work import Work
from rankscope.collector.steps.run_start import WARMUP_STEPS, RunStart
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.rank_intervals import SUMS
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.errors import SettingError, UnavailableError
from tests.unit.collector.comparison.compared_runs import keep_steps, kept_sums, vary
from tests.unit.collector.runs.kept_runs import MS, run_of, step_of
from tests.unit.collector.steps.collective_steps import KindWaits, columns_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a run of 200 steps, the first ones ten times as long, and ten intervals."""
    path = tmp_path / "store.db"
    steps_ms = [1_000.0] * WARMUP_STEPS + [100.0] * 190
    keep_steps(path, "bert", steps_ms, first_step=0, sums=kept_sums(100.0, compute=0.5))
    return path


def read(path: Path, first_step: int = 0, end_step: int | None = None) -> RunSide:
    return read_side(path, Selection("bert", is_range=True, first_step=first_step, end_step=end_step))


def test_first_steps_of_a_run_are_left_out(path: Path) -> None:
    side = read_side(path, Selection("bert"))
    assert (side.first_step, side.last_step, len(side.step_ns)) == (10, 199, 190)
    assert (side.step_ns == 100 * MS).all()
    assert (side.phases_ns["data"] == 10 * MS).all()
    assert side.left_out == "the first 10 steps of each attempt"


def test_range_has_its_first_step_and_not_its_end(path: Path) -> None:
    side = read(path, 5, 150)
    assert (side.first_step, side.last_step, len(side.step_ns)) == (5, 149, 145)
    assert side.step_ns.sum() == (5 * 1_000 + 140 * 100) * MS
    assert (side.left_out, side.goodput_ratio) == ("", None)


def test_range_has_the_intervals_within_its_steps(path: Path) -> None:
    # Steps are a second apart, intervals of a minute begin at 10 s: [10, 70] and [70, 130] lie in steps 0 to 139.
    assert (len(read(path, 0, 140).sums), len(read(path, 11, 131).sums)) == (2, 1)
    assert len(read_side(path, Selection("bert")).sums) == 10


def test_sums_are_those_of_the_store(path: Path) -> None:
    sums = dict(zip(SUMS, read_side(path, Selection("bert")).sums[0].tolist(), strict=True))
    assert (sums["steps"], sums["window_ns"], sums["compute_ns"]) == (20, 2_000 * MS, 1_000 * MS)


def test_nodes_and_world_are_those_of_the_last_attempt(path: Path) -> None:
    side = read_side(path, Selection("bert"))
    assert (side.nodes, side.world_size, side.attempts) == (frozenset({"node-a"}), 2, 1)
    assert side.goodput_ratio == 0.7


def test_too_few_steps_are_refused_with_their_number(path: Path) -> None:
    with pytest.raises(UnavailableError, match=rf"'bert' in steps 150 to 999 has 50 steps .* at least {STEPS_MIN}"):
        read(path, 150, 1_000)


def test_unknown_run_is_refused(path: Path) -> None:
    with pytest.raises(UnavailableError, match="no run 't5'"):
        read_side(path, Selection("t5"))


def test_last_steps_of_a_long_run_are_compared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert STEPS_READ_MAX > 200
    monkeypatch.setattr("rankscope.collector.comparison.run_side.STEPS_READ_MAX", 120)
    side = read_side(path, Selection("bert"))
    assert (side.first_step, side.last_step) == (80, 199)
    assert side.left_out == "the first 10 steps of each attempt and all steps before the last 120"
    assert len(side.sums) == 1  # [130, 190]: the one within these steps


def test_range_is_of_the_last_attempt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    keep_steps(path, "bert", [50.0] * 150, first_step=0, attempt=0)
    keep_steps(path, "bert", [100.0] * 150, first_step=0, attempt=1)
    assert (read(path).step_ns == 100 * MS).all()
    assert len(read_side(path, Selection("bert")).step_ns) == 2 * 140


@pytest.mark.parametrize(
    ("words", "ranges"),
    [
        (["a", "b"], [(False, 0, None), (False, 0, None)]),
        (["a@steps", ":9", "b"], [(True, 0, 9), (False, 0, None)]),
        (["a@steps 5:9", "a@steps 9:"], [(True, 5, 9), (True, 9, None)]),
    ],
)
def test_words_name_runs_and_ranges(words: list[str], ranges: list[tuple[bool, int, int | None]]) -> None:
    assert [(one.is_range, one.first_step, one.end_step) for one in parse_selections(words)] == ranges


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["my run", "b"], ["my run", "b"]),
        (["my run@steps", "5:9", "my run@steps 9:"], ["my run", "my run"]),
        (["a@steps 1:2@steps 5:9"], ["a@steps 1:2"]),  # the last one counts
    ],
)
def test_all_before_the_range_is_the_name(words: list[str], runs: list[str]) -> None:
    assert [one.run for one in parse_selections(words)] == runs


@pytest.mark.parametrize(
    "words", [["a@steps"], ["a@steps", "b"], ["a@steps", "9:9"], ["@steps", "0:9"], ["a@steps 9:5"]]
)
def test_word_that_is_no_range_is_refused(words: list[str]) -> None:
    with pytest.raises(SettingError, match="is no range of steps; write RUN@steps FIRST:END"):
        parse_selections(words)


def test_collectives_of_the_store_are_read_for_a_whole_run(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    keep_steps(path, "bert", vary(100.0))
    assert read_side(path, Selection("bert")).collectives == {}
    counts = CollectiveCounts()
    counts.add(columns_of([KindWaits(0, "dp", "all_reduce", 2, 60, 2_000, 2, 20, 40, 2_000, 40)]))
    batch = WriteBatch()
    batch.collectives["bert"] = counts.read()
    batch.add_step("bert", step_of(500))
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        store.write(batch)
    assert read_side(path, Selection("bert")).collectives == {("dp", "all_reduce"): KindMeans(2, 20.0, 10.0)}
    assert read_side(path, Selection("bert")).collective_times == {("dp", "all_reduce"): KindTime(2, 60)}
    assert read_side(path, Selection("bert", is_range=True)).collectives == {}
    with closing(Database(path)) as database, closing(database.open_connection()) as connection:
        connection.execute("UPDATE collectives SET body = x'00'")
    assert read_side(path, Selection("bert")).collectives == {}


def start_at(begun_wall_s: float, log_ratio: float = 0.0) -> RunStart:
    """The first steps of a run, of 100 ms times e^log_ratio."""
    return RunStart(
        begun_wall_s=begun_wall_s, work=Work(2), first_step=10, last_step=137, steps=128,
        step_ns=100 * MS * math.exp(log_ratio),
    )  # fmt: skip


@pytest.mark.parametrize("earlier", [4, 5])
def test_spread_of_the_starts_before_a_run_is_read(tmp_path: Path, earlier: int) -> None:
    store, run = tmp_path / "store.db", "bert@20261125T103005Z"
    keep_steps(store, run, vary(100.0))
    batch = WriteBatch()
    batch.stories[run] = SavedStory(start=start_at(1_000.0))
    batch.put_run(msgspec.structs.replace(run_of(run), world_size=2))
    for place, log_ratio in enumerate((0.0, 0.02, -0.02, 0.04, -0.04)[:earlier]):
        name = f"bert@20261120T10000{place}Z"
        batch.put_run(run_of(name))
        batch.stories[name] = SavedStory(start=start_at(10.0 + place, log_ratio))
    with closing(Database(store)) as database, closing(HistoryStore(database)) as written:
        written.write(batch)
    found = read_side(store, Selection(run)).start_spread
    if earlier < 5:
        assert found is None
        return
    # Distances from the median: 0, 0.02, 0.02, 0.04, 0.04. 1.4826 x 0.02 = 0.0297; 0.04 / 1.1503 = 0.0348, the larger.
    assert found == pytest.approx((5, 0.04 / 1.1503))
