"""The repeated blocks of a model, two ranks over gloo: what each takes against the script's own clock, and which block
of which rank is named.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from rankscope.collector.detect.finding import STRAGGLER
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.steps.layer_times import RunLayers, describe_layers
from tests.integration.served_training import train_to_end
from tests.integration.serving import Served, serving

WORK_NS = 4e6
"""Of a forward; a backward works twice as long."""
BESIDE_NS = 12e6
"""What a block takes besides its work, and what steps differ by, on a busy machine."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


class Trained(NamedTuple):
    """A job that has ended: the run, its blocks, by rank and block the median of forward and backward by the script's
    own clock, and what else it has printed.
    """

    run: RunSnapshot
    layers: RunLayers
    clocks: dict[tuple[int, int], tuple[int, int]]
    printed: list[str]


def train(served: Served, run: str, *options: str, layer_times: str = "1") -> Trained:
    words = ("layers.py", "--work-s", str(WORK_NS / 1e9), *options)
    lines, found = train_to_end(served, run, 2, *words, layer_times=layer_times)
    told = [line.split()[1:] for line in lines if line.startswith("clock ")]
    clocks = {(int(rank), int(block)): (int(forward), int(backward)) for rank, block, forward, backward in told}
    printed = sorted(line for line in lines if line.startswith(("loss ", "graphs ")))
    return Trained(found, found.layers or RunLayers(), clocks, printed)


def check_times(trained: Trained, *, recomputed: bool = False) -> None:
    """Assert that what a block takes is its work and little more; with a checkpoint the forward twice."""
    (group,) = trained.layers.groups
    assert (group.kind, group.ranks, [one.number for one in group.layers]) == ("Block", (0, 1), list(range(8)))
    for layer in group.layers:
        forward_ns = sum(trained.clocks[rank, layer.number][0] for rank in (0, 1)) / 2
        backward_ns = sum(trained.clocks[rank, layer.number][1] for rank in (0, 1)) / 2
        backward_ns += forward_ns if recomputed else 0.0
        assert layer.forward_ns is not None
        assert layer.backward_ns is not None
        assert WORK_NS <= layer.forward_ns <= forward_ns + BESIDE_NS
        assert (3 if recomputed else 2) * WORK_NS <= layer.backward_ns <= backward_ns + BESIDE_NS


SLOW = ("--slow", "1", "--block", "5", "--times", "8", "--from-step", "20")
SAID = "layer 5 of 8 (Block): "


def check_slow(trained: Trained) -> None:
    """Assert that the block of SLOW is named, alone, with its time and that of its peer."""
    check_times(trained)
    (slow,) = trained.layers.slow
    assert (slow.rank, slow.number, slow.count, slow.kind) == (1, 5, 8, "Block")
    # Of its own 8 x 12 ms = 96 ms in a step its peer takes 12.
    assert 24 * WORK_NS <= slow.ns <= sum(trained.clocks[1, 5]) + BESIDE_NS
    assert 3 * WORK_NS <= slow.peers_ns <= sum(trained.clocks[0, 5]) + BESIDE_NS
    assert any(line.startswith(f"rank 1: {SAID}") for line in describe_layers(trained.layers))


def test_slow_block_is_named_in_the_finding_about_its_rank(served: Served) -> None:
    trained = train(served, "slow-ddp", "ddp", "--steps", "140", *SLOW)
    check_slow(trained)
    (finding,) = [one for one in trained.run.findings if one.kind == STRAGGLER]
    assert finding.ranks == (1,)
    assert [text for text in finding.also if text.startswith(SAID)] != []


def test_slow_block_of_a_sharded_model_is_named(served: Served) -> None:
    check_slow(train(served, "slow-fsdp2", "fsdp2", "--steps", "80", *SLOW))


def test_healthy_run_names_no_block_and_recomputes_in_backward(served: Served) -> None:
    trained = train(served, "healthy", "ddp", "--steps", "50", "--checkpointed")
    check_times(trained, recomputed=True)
    assert trained.layers.slow == ()
    assert not any("layer " in one.sentence for one in trained.run.findings)


def test_run_without_it_computes_the_same_and_compiles_as_often(served: Served) -> None:
    options = ("fsdp2", "--steps", "200", "--compiled", "--work-s", "0")
    with_it = train(served, "compiled", *options)
    without = train(served, "compiled-without", *options, layer_times="0")
    assert with_it.printed == without.printed
    assert with_it.layers.groups != ()
    assert without.layers.groups == ()
