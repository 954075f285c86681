"""Megatron-core: a small GPT by its layers, its parallel state, its schedules, its DDP and its optimizer."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.frameworks.jobs.cpu_for_cuda import take_cpu
from tests.frameworks.jobs.told import STEPS, Work, tell

LENGTH, WORDS, MICRO_BATCHES, ROWS = 16, 64, 2, 2

parts = {"tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "sharded": 0} | {
    name: int(size) for name, _, size in (word.partition("=") for word in sys.argv[1:])
}
take_cpu()
if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # without Transformer Engine it asks for the name that it has not imported
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=parts["tp"],
    pipeline_model_parallel_size=parts["pp"],
    virtual_pipeline_model_parallel_size=parts["vp"] if parts["vp"] > 1 else None,
    context_parallel_size=parts["cp"],
    expert_model_parallel_size=parts["ep"],
)
model_parallel_cuda_manual_seed(7)
torch.manual_seed(7)
experts = 2 * parts["ep"] if parts["ep"] > 1 else None
config = TransformerConfig(
    num_layers=2 * parts["vp"],
    hidden_size=32,
    num_attention_heads=4,
    use_cpu_initialization=True,
    tensor_model_parallel_size=parts["tp"],
    pipeline_model_parallel_size=parts["pp"],
    virtual_pipeline_model_parallel_size=parts["vp"] if parts["vp"] > 1 else None,
    context_parallel_size=parts["cp"],
    expert_model_parallel_size=parts["ep"],
    num_moe_experts=experts,
    pipeline_dtype=torch.float32,
    deallocate_pipeline_outputs=True,  # as its own training has it: then it calls autograd's engine itself
    hidden_dropout=0.0,
    attention_dropout=0.0,
    gradient_accumulation_fusion=False,
    finalize_model_grads_func=finalize_model_grads,
)
is_sharded = bool(parts["sharded"])
chunks = []
for chunk in range(parts["vp"]):
    place = {"vp_stage": chunk, "ignore_virtual": False} if parts["vp"] > 1 else {}
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(num_experts=experts),
        vocab_size=WORDS,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        vp_stage=place.get("vp_stage"),
    )
    gpt.register_forward_pre_hook(Work().pause)
    options = DistributedDataParallelConfig(use_distributed_optimizer=is_sharded)
    chunks.append(DistributedDataParallel(config, options, gpt))
# Its clipping of gradients refuses those on a CPU.
adam = OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=0.0, use_distributed_optimizer=is_sharded)
optimizer = get_megatron_optimizer(adam, chunks)


def read_batches(first: int) -> Iterator[torch.Tensor]:
    """Yield micro batches of this rank's data parallel part."""
    for micro in range(first, first + MICRO_BATCHES):
        seeded = torch.Generator().manual_seed(100 * micro + parallel_state.get_data_parallel_rank())
        yield torch.randint(WORDS, (ROWS, LENGTH + 1), generator=seeded)


def run_forward(batches: Iterator[torch.Tensor], module: Any) -> tuple[torch.Tensor, Any]:
    """Run a micro batch forward, as Megatron's schedules want it."""
    words = next(batches)
    places = torch.arange(LENGTH).expand(ROWS, LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    output = module(words[:, :-1], places, mask, labels=words[:, 1:])

    def find_loss(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.float().mean()
        return loss, {"loss": loss.detach()}

    return output, find_loss


run_schedule = get_forward_backward_func()
losses = []
for step in range(STEPS):
    for model in chunks:
        model.zero_grad_buffer()
    optimizer.zero_grad()
    reduced = run_schedule(
        forward_step_func=run_forward,
        data_iterator=[read_batches(step * MICRO_BATCHES) for _ in chunks],
        model=chunks,
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=ROWS,
        forward_only=False,
    )
    optimizer.step()
    losses.append(sum(one["loss"].item() for one in reduced))
tell(STEPS, losses)
parallel_state.destroy_model_parallel()
dist.destroy_process_group()
