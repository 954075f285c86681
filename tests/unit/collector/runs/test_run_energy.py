"""The energy of a run, by hand."""

import pytest

from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.run_energy import RunEnergy, describe_run_energy, find_run_energy
from rankscope.collector.runs.run_status import find_lost_to_slow
from rankscope.measure.records import DeviceSample, Totals


def gpu(uuid: str, joules: float | None = None, reason: str = "") -> DeviceSample:
    return DeviceSample(
        host_ns=0, uuid=uuid, energy_joules=joules, absent={} if joules is not None else {"energy_joules": reason}
    )


def rank(*gpus: DeviceSample, steps: int = 10, tokens: int | None = None) -> tuple[Totals, tuple[DeviceSample, ...]]:
    return Totals(steps=steps, tokens=tokens), gpus


def test_energy_sums_all_boards_per_step_and_token_of_all_ranks() -> None:
    found = find_run_energy([rank(gpu("A", 60.0), tokens=30), rank(gpu("B", 40.0), steps=9, tokens=20)], 0.25)
    assert found == RunEnergy(100.0, gpus=2, per_step=10.0, per_token=2.0, waiting_joules=25.0)


def test_shared_board_counts_once_by_the_rank_that_began_first() -> None:
    found = find_run_energy([rank(gpu("A", 60.0)), rank(gpu("A", 55.0))])
    assert (found.joules, found.gpus) == (60.0, 1)


def test_board_that_one_of_its_ranks_can_read_is_known() -> None:
    assert find_run_energy([rank(gpu("A", 60.0)), rank(gpu("A", reason="no_permission"))]).joules == 60.0


@pytest.mark.parametrize(
    ("ranks", "absent"),
    [
        ([rank(gpu("A", 1.0)), rank(gpu("B", reason="not_supported"))], "not supported"),
        ([rank(gpu("A", 1.0)), rank(gpu("B"))], ""),
        ([rank(gpu("A", 1.0)), rank(gpu("A", reason="x")), rank(gpu("B", reason="no_y"))], "no y"),
        ([rank(gpu("A", 1.0)), rank(), rank()], "2 of 3 ranks have no sample of a GPU"),
    ],
)
def test_sum_over_some_gpus_is_not_that_of_the_run(
    ranks: list[tuple[Totals, tuple[DeviceSample, ...]]], absent: str
) -> None:
    found = find_run_energy(ranks)
    assert (found.joules, found.per_step, found.absent) == (None, None, absent)


def test_run_without_gpus_says_nothing_of_energy() -> None:
    assert describe_run_energy(find_run_energy([rank(), rank()])) == ""


def test_tokens_unknown_to_one_rank_are_not_those_of_the_run() -> None:
    assert find_run_energy([rank(gpu("A", 1.0), tokens=3), rank(gpu("B", 1.0))]).per_token is None


def test_before_the_first_step_there_is_no_energy_of_a_step() -> None:
    assert describe_run_energy(find_run_energy([rank(gpu("A", 60.0), steps=0)], 0.0)) == "60.0 J (0.00 kWh) of 1 GPU"


def test_no_more_than_all_is_lost() -> None:
    assert find_run_energy([rank(gpu("A", 60.0))], 1.5).waiting_joules == 60.0


@pytest.mark.parametrize(("restart_ns", "share"), [(0, 0.25), (1, None)])
def test_share_lost_over_all_attempts_is_not_that_of_the_last(restart_ns: int, share: float | None) -> None:
    goodput = GoodputSnapshot(wall_ns=100, slow_ns=25, restart_ns=restart_ns)
    assert find_lost_to_slow(goodput) == share
    assert find_lost_to_slow(GoodputSnapshot()) is None
