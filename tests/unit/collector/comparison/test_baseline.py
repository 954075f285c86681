"""Which earlier run is the last good one."""

from pathlib import Path

import pytest

from rankscope.collector.comparison.baseline import find_baseline
from rankscope.measure.errors import UnavailableError
from tests.unit.collector.comparison.compared_runs import keep_steps, vary

RUN = "bert@20261125T103005Z"


def run_id(hour: int) -> str:
    return f"bert@20261125T{hour:02d}0000Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with the run that is compared, one of another name, and a later one."""
    path = tmp_path / "store.db"
    for run in (RUN, "bert-2@20261125T090000Z", run_id(12)):
        keep_steps(path, run, vary(100.0))
    return path


def test_latest_earlier_run_that_ended_well_is_chosen(path: Path) -> None:
    for hour, ended in ((7, "finished"), (8, "stopped"), (9, "crashed"), (10, None)):
        keep_steps(path, run_id(hour), vary(100.0), ended=ended)
    found = find_baseline(path, RUN)
    assert (found.side.run_id, found.findings) == (run_id(8), 0)


def test_run_with_findings_gives_way_to_one_without(path: Path) -> None:
    keep_steps(path, run_id(7), vary(100.0))
    keep_steps(path, run_id(8), vary(100.0), findings=1)
    assert find_baseline(path, RUN).side.run_id == run_id(7)


def test_where_all_have_findings_the_fewest_decide(path: Path) -> None:
    for hour, findings in ((6, 1), (7, 1), (8, 2)):
        keep_steps(path, run_id(hour), vary(100.0), findings=findings)
    found = find_baseline(path, RUN)
    assert (found.side.run_id, found.findings) == (run_id(7), 1)


def test_other_worlds_and_short_runs_do_not_count(path: Path) -> None:
    keep_steps(path, run_id(6), vary(100.0))
    keep_steps(path, run_id(7), vary(100.0), world_size=4)
    keep_steps(path, run_id(8), vary(100.0, steps=50))
    assert find_baseline(path, RUN).side.run_id == run_id(6)


def test_no_earlier_run_is_refused_with_the_reason(path: Path) -> None:
    with pytest.raises(UnavailableError, match="There is no earlier run of this name"):
        find_baseline(path, RUN)
    keep_steps(path, run_id(8), vary(100.0), ended="crashed")
    with pytest.raises(UnavailableError, match=rf"{run_id(8)} ended as crashed\."):
        find_baseline(path, RUN)
    keep_steps(path, run_id(9), vary(100.0), world_size=4)
    with pytest.raises(UnavailableError, match=r"had 4 ranks instead of 2\."):
        find_baseline(path, RUN)
    keep_steps(path, run_id(10), vary(100.0), ended=None)
    with pytest.raises(UnavailableError, match=r"is not known to have ended\."):
        find_baseline(path, RUN)
