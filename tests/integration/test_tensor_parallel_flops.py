"""FLOPs of divided models: each rank counts the products that it computes, whatever the global shapes are."""

from pathlib import Path

import pytest

from rankscope.collector.traces import analyze
from tests.integration.torchrun import forked_ranks, run

PRODUCTS = 8 * 2 * (64 * 256 + 256 * 64)
"""Forward FLOPs of both layers, which have equal products. The input needs no gradient, so the backward has three."""
BACKWARD = PRODUCTS + PRODUCTS // 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name in ("cut", "divide"):
        (folder / name).mkdir()
    ended = run(forked_ranks(2, "tensor_parallel.py", str(folder)))
    assert ended.exit_code == 0, ended.stderr
    return folder


def read(folder: Path) -> list[tuple[int, int, int]]:
    """Return the FLOPs of each rank: forward, recomputed and backward."""
    found = [rank.flops for rank in analyze(str(folder), flops=True).ranks]
    return [(one.forward_flops, one.recompute_flops, one.backward_flops) for one in found if one is not None]


def test_each_rank_of_a_tensor_parallel_pair_counts_its_half(traces: Path) -> None:
    assert read(traces / "cut") == [(PRODUCTS // 2, 0, BACKWARD // 2)] * 2


def test_each_rank_of_fsdp_counts_the_whole_model_on_its_batch(traces: Path) -> None:
    assert read(traces / "divide") == [(PRODUCTS, 0, BACKWARD)] * 2
