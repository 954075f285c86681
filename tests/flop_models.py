"""Small models whose floating-point operations are counted by hand, to be traced by torch's profiler on a CPU.

A multiplication and an addition are 2; only products count. In the backward each product of the forward is made again
for the gradient of each of its factors, but not for an input of the model, which needs none.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

B = 4
"""Batch of all models."""


class Known(NamedTuple):
    """A model with its inputs, and the FLOPs by hand of its forward and backward. `recompute` are those of the forward
    that run again.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    forward: int
    backward: int
    recompute: int = 0

    def run_forward(self) -> torch.Tensor:
        """Return the output; the first one of several."""
        found = self.model(*self.inputs)
        output: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return output

    def run(self) -> None:
        """Run forward and backward."""
        self.run_forward().sum().backward()


class Attention(nn.Module):
    """Self-attention of width 64 with 4 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(found.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """A transformer block of width 64."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        down: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return x + down


BLOCK_PRODUCTS = B * 32 * 2 * (64 * 192 + 64 * 64 + 2 * 64 * 256)
"""Those with weights, for 32 tokens."""
BLOCK_SCORES = B * 4 * 2 * 32 * 32 * 16
"""One product of 4 heads of width 16: q and k, or scores and v, which are not halved for the causal mask."""


def train(model: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        found = model(x)
        (found[0] if isinstance(found, tuple) else found).sum().backward()

    return run


def make_mlp() -> Known:
    first, second = B * 2 * 128 * 256, B * 2 * 256 * 10
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    return Known(model, (torch.randn(B, 128),), first + second, first + 2 * second)


def make_convolutions() -> Known:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4),
        nn.Conv2d(32, 32, 3, groups=32),
        nn.Conv2d(32, 8, (3, 1), dilation=2, bias=False),
    )
    first = B * 2 * 32 * 32 * 16 * 3 * 9  # 32 + 2 - 3 + 1 = 32
    grouped = B * 2 * 16 * 16 * 32 * 4 * 9  # (32 + 2 - 3) // 2 + 1 = 16; each output channel sees 16 / 4
    depthwise = B * 2 * 14 * 14 * 32 * 1 * 9
    dilated = B * 2 * 10 * 14 * 8 * 32 * 3  # 14 - 2 * 2 = 10 rows, 14 columns
    others = grouped + depthwise + dilated
    return Known(model, (torch.randn(B, 3, 32, 32),), first + others, first + 2 * others)


class OtherDimensions(nn.Module):
    """Convolutions of one and three dimensions, and a transposed one of two groups, each of an input of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.Conv1d(4, 6, 5), nn.Conv3d(2, 4, 3, groups=2)
        self.transposed = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)

    def forward(self, one: torch.Tensor, three: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.one(one).sum() + self.three(three).sum() + self.transposed(transposed).sum()
        return out


def make_other_dimensions() -> Known:
    inputs = (torch.randn(B, 4, 20), torch.randn(B, 2, 5, 5, 5), torch.randn(B, 4, 5, 5, requires_grad=True))
    of_one = B * 2 * 16 * 6 * 4 * 5
    of_three = B * 2 * 27 * 4 * 1 * 27
    of_transposed = B * 2 * 25 * 4 * 3 * 9  # at each of 5 x 5 inputs
    return Known(OtherDimensions(), inputs, of_one + of_three + of_transposed, of_one + of_three + 2 * of_transposed)


def make_attention() -> Known:
    """One operator computes both products of attention; its backward makes the scores again: 5 products."""
    return Known(
        Block(), (torch.randn(B, 32, 64, requires_grad=True),),
        BLOCK_PRODUCTS + 2 * BLOCK_SCORES,
        2 * BLOCK_PRODUCTS + 5 * BLOCK_SCORES,
    )  # fmt: skip


class PlainProducts(Block):
    """A block whose attention, forward and backward, consists of plain products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().forward(x)


def make_attention_of_plain_products() -> Known:
    return Known(
        PlainProducts(), (torch.randn(B, 32, 64, requires_grad=True),),
        BLOCK_PRODUCTS + 2 * BLOCK_SCORES,
        2 * BLOCK_PRODUCTS + 4 * BLOCK_SCORES,
    )  # fmt: skip


class GroupedQueries(nn.Module):
    """Attention of 8 heads on 2 of keys and values, with a mask."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(q.shape[2], k.shape[2])
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def make_grouped_queries() -> Known:
    """Each of 8 heads multiplies with keys and values of its own; one operator, 2 products, and 5 in the backward."""
    q, k, v = (torch.randn(B, heads, 32, 16, requires_grad=True) for heads in (8, 2, 2))
    product = B * 8 * 2 * 32 * 32 * 16
    return Known(GroupedQueries(), (q, k, v), 2 * product, 5 * product)


class CrossAttention(nn.Module):
    """Attention with dropout."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)


def make_cross_attention() -> Known:
    """32 queries on 20 keys of width 16 and values of width 24, in plain products: no operator has dropout on a CPU."""
    shapes = ((B, 4, 32, 16), (B, 4, 20, 16), (B, 4, 20, 24))
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    once = B * 4 * 2 * 32 * 20 * (16 + 24)
    return Known(CrossAttention(), (q, k, v), once, 2 * once)


class Experts(nn.Module):
    """Two experts, each of which multiplies some of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 32, 8, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch._grouped_mm(x, self.weight, offs=torch.tensor([8, 24], dtype=torch.int32))
        return found.square()  # whose gradient is stored as the product is


def make_experts() -> Known:
    once = 2 * 24 * 32 * 8
    return Known(Experts(), (torch.randn(24, 32, dtype=torch.bfloat16, requires_grad=True),), once, 2 * once)


def make_lstm() -> Known:
    once = B * 20 * 2 * 4 * 48 * (32 + 48)
    return Known(nn.LSTM(32, 48, batch_first=True), (torch.randn(B, 20, 32),), once, 2 * once)


def make_gru() -> Known:
    """Both directions; torch computes the products of the hidden state step by step. The first state needs no
    gradient.
    """
    of_input, of_step = 2 * B * 20 * 2 * 3 * 48 * 32, 2 * B * 2 * 3 * 48 * 48
    model = nn.GRU(32, 48, batch_first=True, bidirectional=True)
    return Known(model, (torch.randn(B, 20, 32),), of_input + 20 * of_step, of_input + (20 + 19) * of_step)


def make_embedding() -> Known:
    once = B * 16 * 2 * 64 * 1000
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False))
    return Known(model, (torch.randint(0, 1000, (B, 16)),), once, 2 * once)


class Checkpointed(nn.Module):
    """A block whose forward runs again in the backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = Block(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return found


def make_checkpoint(*, reentrant: bool) -> Known:
    """The forward runs twice. Where the checkpoint is not reentrant torch stops in the last product of the second time,
    of which a trace has the operator all the same.
    """
    once = BLOCK_PRODUCTS + 2 * BLOCK_SCORES
    x = torch.randn(B, 32, 64, requires_grad=True)
    return Known(Checkpointed(reentrant=reentrant), (x,), once, 2 * BLOCK_PRODUCTS + 5 * BLOCK_SCORES, once)


def make_compiled(backend: str) -> Known:
    first, second = B * 2 * 128 * 256, B * 2 * 256 * 10
    # `model.compile()` would leave a model of torch's own modules alone: dynamo skips their files.
    compiled = torch.compile(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)), backend=backend)
    model = cast("nn.Module", compiled)
    return Known(model, (torch.randn(B, 128),), first + second, first + 2 * second)


MODELS: dict[str, Callable[[], Known]] = {
    "MLP": make_mlp,
    "2-d convolutions: plain, grouped, depthwise, dilated": make_convolutions,
    "1-d, 3-d and transposed convolutions": make_other_dimensions,
    "transformer block, SDPA": make_attention,
    "transformer block, SDPA of plain products": make_attention_of_plain_products,
    "attention of grouped queries, masked": make_grouped_queries,
    "attention with dropout on other lengths": make_cross_attention,
    "grouped product of experts, bf16": make_experts,
    "LSTM": make_lstm,
    "GRU, both directions": make_gru,
    "embedding and head": make_embedding,
    "block, checkpoint (reentrant)": lambda: make_checkpoint(reentrant=True),
    "block, checkpoint (not reentrant)": lambda: make_checkpoint(reentrant=False),
    "MLP, torch.compile (eager)": lambda: make_compiled("eager"),
    "MLP, torch.compile (aot_eager)": lambda: make_compiled("aot_eager"),
}


@contextlib.contextmanager
def one_of_two_ranks() -> Iterator[None]:
    """A process group in which this process is rank 0 of 2, and collectives end without the other one."""
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


TENSOR_PARALLEL = "feed-forward, tensor parallel: one of 2 ranks"


def make_tensor_parallel() -> Known:
    """Return two products of which this rank has half of the inner width; in `one_of_two_ranks`."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    mesh = init_device_mesh("cpu", (2,))
    parallel = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    half = B * 2 * 64 * 128 + B * 2 * 128 * 64
    return Known(parallel, (torch.randn(B, 64, requires_grad=True),), half, 2 * half)


def record(run: Callable[[], None], path: Path, *, stacks: bool = False) -> Path:
    """Write a trace of one call, after one that warms up, and return its path."""
    run()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=stacks) as recorded:
        run()
    recorded.export_chrome_trace(str(path))
    return path
