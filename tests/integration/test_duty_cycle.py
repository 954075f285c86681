"""One of three and four real ranks over gloo stalls in every third step, and its median step is that of the others."""

from collections.abc import Iterator

import pytest

from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.serving import Served, serving
from tests.integration.torchrun import forked_ranks, started

SLOW, EVERY = 1, 3


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of both jobs."""
    with serving() as served:
        yield served


def find_intermittent(run: RunSnapshot) -> list[Finding]:
    return [one for one in run.findings if (one.kind, one.pattern) == (STRAGGLER, "intermittent")]


def says_period(run: RunSnapshot) -> bool:
    """Whether the period is stated. The first sentence may have a share of the steps instead: on a busy machine the
    rank has been slow in a few steps of its own before, and most gaps must be equal.
    """
    return any(f"every {EVERY} steps" in one.sentence for one in find_intermittent(run))


@pytest.mark.parametrize("ranks", [3, 4])
def test_rank_that_stalls_every_third_step_is_named(served: Served, ranks: int) -> None:
    run = f"stalls-{ranks}"
    environment = {
        "RANKSCOPE_COLLECTOR": served.endpoint,
        "RANKSCOPE_RUN": run,
        "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.5",
        "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.2",
    }
    options = ("--slow-rank", str(SLOW), "--slow-every", str(EVERY), "--slow-from", "30", "--slow-s", "0.12")
    with started(forked_ranks(ranks, "-m", "rankscope.agent", "paced.py", *options), environment):
        snapshot = served.wait_for_run(run, says_period)
    found = find_intermittent(snapshot)
    assert [one.ranks for one in found] == [(SLOW,)], [one.sentence for one in found]
    assert not any(one.kind == "run_slowdown" and "no single rank" in one.sentence for one in snapshot.open_findings)
