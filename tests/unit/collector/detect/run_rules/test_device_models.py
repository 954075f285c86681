"""Models of GPU in one run: eight ranks, the last four on the slower one unless stated otherwise. Seeded noise."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.run_rules.device_models import NOT_COMPARED, DeviceModels
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import UNKNOWN, series_of, view_of

MODELS: dict[int, str | None] = {**dict.fromkeys(range(4), "H200"), **dict.fromkeys(range(4, 8), "H100")}
DETECTOR = DeviceModels(Thresholds())


def times(ratio: float, *, spread: float = 0.02, steps: int = 60) -> Floats:
    """Own times in ms: 100 on the first four ranks, `ratio` times that on the others."""
    usual = np.repeat([100.0, 100.0 * ratio], 4)
    return usual * np.exp(np.random.default_rng(1).normal(0.0, spread, (steps, 8)))


def view(own_ms: Floats, models: dict[int, str | None] | None = None, stages: dict[int, int] | None = None) -> RunView:
    return view_of(series_of(own_ms.tolist()), models=MODELS if models is None else models, signatures=stages)


def candidates(look: RunView, *known: Finding) -> list[Candidate]:
    found = DETECTOR.find(look, known)
    assert not isinstance(found, Abstain)
    return list(found)


def test_slower_model_is_named_and_no_rank() -> None:
    # Without noise: steps of 110 ms would take 100, so that of an hour 10 / 110 is lost on 8 ranks: 0.73 rank-hours.
    ((finding, lost_ns),) = candidates(view(times(1.1, spread=0.0)))
    assert (finding.kind, finding.ranks, finding.nodes, finding.severity) == ("slow_gpu_model", (), (), "info")
    assert finding.headline == "4 ranks on H100: 1.10x slower than 4 ranks with the same work on H200 since step 0"
    assert finding.figures == "Own time 110.0 ms per step, on the faster model 100.0 ms"
    assert finding.cost == "run 1.10x slower than with the faster model only"
    assert finding.details == {"model": "H100", "ranks": "4-7", "fastest model": "H200"}
    assert isinstance(lost_ns, np.ndarray)
    assert lost_ns.tolist() == pytest.approx([10e6] * 60)


def test_no_rank_of_the_slower_model_is_a_straggler() -> None:
    assert Stragglers(Thresholds()).find(view(times(1.1)), ()) == []


def test_slow_rank_of_the_slower_model_is_named_beside_its_peers() -> None:
    own_ms = times(1.1)
    own_ms[:, 6] *= 1.2
    found = Stragglers(Thresholds()).find(view(own_ms), ())
    assert not isinstance(found, Abstain)
    assert [one.finding.ranks for one in found] == [(6,)]
    assert found[0].finding.slowdown_ratio == pytest.approx(1.2, rel=0.02)


def test_equal_models_are_no_finding() -> None:
    assert candidates(view(times(1.0))) == []


def test_only_the_slowest_model_is_told() -> None:
    own_ms = times(1.1, spread=0.0)
    own_ms[:, 2:4] *= 1.3
    models = {**MODELS, 2: "A100", 3: "A100"}
    (one,) = candidates(view(own_ms, models))
    assert (one.finding.details["model"], one.finding.details["ranks"]) == ("A100", "2-3")


def test_models_are_compared_among_ranks_with_the_same_work_only() -> None:
    # Ranks 0-3 are the first stage and all on H200, so that the models are never beside each other.
    found = DETECTOR.find(view(times(1.1), stages={rank: rank // 4 for rank in range(8)}), ())
    assert found == Abstain(NOT_COMPARED)


def test_single_rank_of_a_model_is_not_judged() -> None:
    found = DETECTOR.find(view(times(1.1), {**dict.fromkeys(range(7), "H200"), 7: "H100"}), ())
    assert found == Abstain(NOT_COMPARED)


def test_rank_of_unknown_model_is_left_out() -> None:
    (one,) = candidates(view(times(1.1), {**MODELS, 4: None}))
    assert one.finding.details["ranks"] == "5-7"


def test_without_two_models_it_abstains() -> None:
    found = DETECTOR.find(view(times(1.1), dict.fromkeys(range(8), "H100")), ())
    assert found == Abstain("no two models of GPU are known in this run")


def test_nothing_is_said_while_too_few_steps_are_known() -> None:
    for own_ms in (times(1.1, steps=5), np.full((20, 8), UNKNOWN)):
        assert DETECTOR.find(view(own_ms), ()) == Abstain(NOT_COMPARED)


def test_steps_not_known_of_all_ranks_have_no_cost() -> None:
    own_ms = times(1.1, spread=0.0)
    own_ms[3, 5] = UNKNOWN
    ((_, lost_ns),) = candidates(view(own_ms))
    assert lost_ns is not None
    assert np.flatnonzero(np.isnan(lost_ns)).tolist() == [3]


def test_open_finding_keeps_its_first_step() -> None:
    (one,) = candidates(view(times(1.1)))
    series = series_of(times(1.1).tolist(), first_step=1_000)
    ((later, _),) = candidates(view_of(series, models=MODELS), one.finding)
    assert later.since_step == 0


def test_finding_passes_once_the_models_are_equal() -> None:
    (one,) = candidates(view(times(1.1)))
    assert not DETECTOR.has_passed(view(times(1.1)), one.finding, ())
    assert DETECTOR.has_passed(view(times(1.0)), one.finding, ())
    assert DETECTOR.has_passed(view(times(1.1), dict.fromkeys(range(8), "H100")), one.finding, ())
