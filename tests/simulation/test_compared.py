"""Simulated runs are compared from the store: what is slower in the second is named, and nothing where they are equal.

The whole score is `python -m tests.simulation.compared` (bench/results/compare.md).
"""

from pathlib import Path

import pytest

from rankscope.collector.comparison.verdict import describe_comparison
from tests.simulation.compared import DECIDABLE, PLANTS, Pair, compare_pair, describe_wrong, list_pairs


@pytest.mark.parametrize("plant", PLANTS[:5], ids=lambda plant: plant[0])
def test_planted_change_is_named_with_its_part(plant: tuple[str, float], tmp_path: Path) -> None:
    judged = compare_pair(Pair(7, "fsdp", "usual", plant, steps=200), tmp_path)
    assert judged.true_ratio > 1.05
    assert judged.is_right, describe_wrong(judged)
    assert judged.found.ratio == pytest.approx(judged.true_ratio, rel=0.01)
    is_communication = judged.true_part == "exposed communication"
    assert (" communication of the group mesh_dp" in describe_comparison(judged.found)) == is_communication


@pytest.mark.parametrize("noise", ["quiet", "checkpoints", "jittery"])
def test_equal_runs_have_no_difference(noise: str, tmp_path: Path) -> None:
    judged = compare_pair(Pair(7, "dp", noise, steps=200), tmp_path)
    assert judged.is_right, describe_wrong(judged)


def test_score_has_every_plant_and_noise_on_both_halves() -> None:
    halves = [list_pairs(remainder) for remainder in (0, 1)]
    for half in halves:
        assert {pair.plant for pair in half} == {None, *PLANTS}
        assert {pair.noise for pair in half} == set(DECIDABLE)
    seeds = [{scenario.seed for pair in half for scenario in pair.scenarios()} for half in halves]
    assert seeds[0].isdisjoint(seeds[1])
    assert [len(of_half) for of_half in seeds] == [200, 200]
