"""Models of GPUs as ranks report them, and the search for peers."""

import msgspec
import pytest

from rankscope.collector.runs import peer_search as module
from rankscope.collector.runs.peer_search import GpuModels, PeerSearch
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.step_accounting import StepAccounting
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Report
from rankscope.measure.records import DeviceSample


def rank_on(number: int, model: str) -> RankState:
    """A rank whose last report has a sample of a GPU of that model; of none where it is empty."""
    identity = RankIdentity(
        run="a", rank=number, local_rank=0, world_size=8, node="n0", restart_count=0, boot_id=f"boot-{number}", pid=7
    )
    hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)
    devices = (DeviceSample(host_ns=1, uuid="GPU-1", model=model),) if model else ()
    state = RankState(hello, 0, 0, 1, 0, StepAccounting(is_known_from_birth=True))
    return msgspec.structs.replace(state, frame=encode(Report(sequence=1, host_ns=1, devices=devices)))


def ranks_on(*models: str) -> dict[int, RankState]:
    return {number: rank_on(number, model) for number, model in enumerate(models)}


def test_several_models_are_told_with_the_unknown_ones() -> None:
    assert GpuModels().read(ranks_on("H100", "H200", "")) == {0: "H100", 1: "H200", 2: None}


@pytest.mark.parametrize("models", [("H100", "H100"), ("H100", ""), ("", ""), ()])
def test_one_model_or_none_is_nothing_to_tell(models: tuple[str, ...]) -> None:
    assert GpuModels().read(ranks_on(*models)) == {}


def test_result_is_the_same_object_while_nothing_changes() -> None:
    models, ranks = GpuModels(), ranks_on("H100", "H200", "")
    assert models.read(ranks) is models.read(ranks)


def test_model_that_is_reported_later_is_read_then() -> None:
    models, ranks = GpuModels(), ranks_on("H100", "")
    assert models.read(ranks) == {}
    ranks[1] = rank_on(1, "H200")
    assert models.read(ranks) == {0: "H100", 1: "H200"}


def test_nothing_is_told_while_some_ranks_were_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEW_RANKS_MAX", 2)
    models, ranks = GpuModels(), ranks_on("H100", "H200", "H100")
    assert models.read(ranks) == {}
    assert models.read(ranks) == {0: "H100", 1: "H200", 2: "H100"}


def test_peers_are_searched_again_when_a_model_becomes_known() -> None:
    search, ranks = PeerSearch(), ranks_on("H100", "H100", "", "H200")
    numbers = (0, 1, 2, 3)
    first = search.find(numbers, {}, ranks, {})
    assert first is search.find(numbers, {}, ranks, {}) or first == search.find(numbers, {}, ranks, {})
    assert first.ranks_without_peers == (2, 3)
    ranks[2] = rank_on(2, "H200")
    assert search.find(numbers, {}, ranks, {}).of(2).members == (2, 3)


def test_ranks_with_more_tokens_a_batch_are_no_peers_of_others() -> None:
    search, ranks = PeerSearch(), ranks_on("", "", "", "")
    numbers = (0, 1, 2, 3)
    assert search.find(numbers, {}, ranks, {}).of(0).members == numbers
    found = search.find(numbers, {}, ranks, {0: 0, 1: 1, 2: 0, 3: 1})
    assert (found.works, found.of(1).members, found.ranks_without_peers) == (((0, 2), (1, 3)), (1, 3), ())
