"""FLOPs of tensor parallelism: each rank multiplies its part, whatever the global shapes are."""

from pathlib import Path

from rankscope.collector.traces import analyze
from tests.integration.torchrun import run, torchrun

PRODUCTS = 8 * 2 * (64 * 256 + 256 * 64)
"""Forward FLOPs of both layers on all ranks together; the input needs no gradient."""


def test_each_rank_of_a_tensor_parallel_pair_counts_its_half(tmp_path: Path) -> None:
    ended = run(torchrun(2, "tensor_parallel.py", str(tmp_path)))
    assert ended.exit_code == 0, ended.stderr
    found = [rank.flops for rank in analyze(str(tmp_path), flops=True).ranks]
    assert [one and (one.forward_flops, one.backward_flops) for one in found] == [
        (PRODUCTS // 2, PRODUCTS // 2 + PRODUCTS // 4)
    ] * 2
