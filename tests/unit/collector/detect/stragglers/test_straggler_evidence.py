"""The caused wait in the evidence of a straggler."""

from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.runs.run_stories import Story
from tests.unit.collector.steps.step_series import MS, series_of, view_of

STEPS = 20
SLOW = 2


def evidence_of(wait_caused_ns: Floats | None) -> float | None:
    """Of four ranks one is twice as slow."""
    series = series_of([[100.0, 100.0, 200.0, 100.0]] * STEPS)
    found = Stragglers(Thresholds()).find(view_of(replace(series, wait_caused_ns=wait_caused_ns)), ())
    assert not isinstance(found, Abstain)
    (candidate,) = found
    return candidate.finding.evidence.get("wait_caused_ns")


def test_straggler_has_its_caused_wait_as_evidence() -> None:
    caused = np.full((STEPS, 4), np.nan)
    caused[::4, SLOW] = 300.0 * MS
    assert evidence_of(caused) == 300.0 * MS


@pytest.mark.parametrize("caused", [None, np.full((STEPS, 4), np.nan)])
def test_unknown_caused_wait_is_no_evidence(caused: Floats | None) -> None:
    assert evidence_of(caused) is None


def test_charges_of_a_run_come_to_its_picture_and_its_finding() -> None:
    story = Story(4).join()
    for _ in range(7):
        story.train(8, forward={SLOW: 40.0})
    # The slow rank needs 60 ms where the others need 30: each of the three waits 30.
    assert [rank.wait_caused_ns_median for rank in story.snapshot().ranks] == [0.0, 0.0, 90.0 * MS, 0.0]
    (finding,) = story.snapshot().open_findings
    assert finding.evidence["wait_caused_ns"] == 90.0 * MS


def test_ranks_without_collectives_have_no_caused_waits() -> None:
    assert [rank.wait_caused_ns_median for rank in Story(2).join().tick().snapshot().ranks] == [None, None]


def test_intermittent_slowness_has_its_mean_caused_wait() -> None:
    steps = 160
    random = np.random.default_rng(5)
    own_ms = random.normal(100.0, 1.0, (steps, 4))
    own_ms[::4, SLOW] += 60.0
    caused = np.zeros((steps, 4))
    caused[::4, SLOW] = 180.0 * MS
    view = view_of(replace(series_of(own_ms.tolist()), wait_caused_ns=caused))
    found = Stragglers(Thresholds()).find(view, ())
    assert not isinstance(found, Abstain)
    ((finding, _),) = found
    assert (finding.pattern, finding.rank) == ("intermittent", SLOW)
    # In one of four steps the three others wait 60 ms each.
    assert finding.evidence["wait_caused_ns"] == 45.0 * MS
