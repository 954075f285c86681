"""Two slow ranks of four, recorded by real torch with gloo, are both named; more work by design is no slowness."""

from collections.abc import Mapping

import pytest

from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import TraceReport
from tests.integration.faults import sized
from tests.integration.torchrun import forked_ranks, run

RANKS = 4
CASES = ("clean:-:1:sleep", "slow:1+3:1.4:sleep", "work:0+2:1.4:work")


@pytest.fixture(scope="module", params=range(sized(1, 10)))
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, TraceReport]:
    folder = tmp_path_factory.mktemp("pairs")
    ended = run(forked_ranks(RANKS, "slow_pair.py", str(folder), *CASES))
    assert ended.exit_code == 0, ended.stderr
    return {name: analyze(str(folder / name)) for name in ("clean", "slow", "work")}


def found_in(report: TraceReport) -> list[tuple[str, list[int]]]:
    assert report.cross_rank is not None
    return [(finding.kind, finding.ranks) for finding in report.cross_rank.findings]


def test_nobody_is_slow_where_all_do_the_same(recorded: Mapping[str, TraceReport]) -> None:
    assert found_in(recorded["clean"]) == []


def test_both_slow_ranks_are_named(recorded: Mapping[str, TraceReport]) -> None:
    assert found_in(recorded["slow"]) == [("straggler", [1, 3])]


def test_more_work_is_no_slowness(recorded: Mapping[str, TraceReport]) -> None:
    assert found_in(recorded["work"]) == [("imbalance", [0, 2])]
    (advice,) = (one for one in recorded["work"].advice if one.key == "load_imbalance")
    assert advice.ranks == [0, 2]
