"""Which jobs there are: a row of docs/frameworks.md each."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PLAIN: Final = (sys.executable,)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job, started by `launcher` with its `arguments`; without one, by torchrun.

    `package` is the distribution whose version is told. `slow_after` is the number of forwards after which one rank is
    made slow: some tens of steps. `unseen` says what of it the monitor does not see, and why.
    """

    name: str
    framework: str
    package: str
    what: str
    script: str
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    ranks: int = 2
    slow_rank: int = 1
    slow_ms: int = 12
    slow_after: int = 60
    variables: Mapping[str, str] = field(default_factory=dict)
    unseen: str = ""


def of_torch(name: str, what: str, script: str, *arguments: str, ranks: int = 2, unseen: str = "") -> Row:
    """Return a row of PyTorch itself."""
    return Row(
        name=name, framework="PyTorch", package="torch", what=what, script=script, arguments=arguments, ranks=ranks,
        unseen=unseen,
    )  # fmt: skip


def of_pipeline(name: str, what: str, schedule: str) -> Row:
    """Return a row of a schedule: four forwards of each stage in a step."""
    return Row(
        name=name, framework="PyTorch", package="torch", what=f"`pipelining`, {what}", script="pipelining",
        arguments=(schedule,), slow_after=60 * 4, slow_ms=6,
    )  # fmt: skip


def of_zero(stage: int) -> Row:
    """Return a row of DeepSpeed with that stage of ZeRO."""
    return Row(
        name=f"deepspeed-zero{stage}", framework="DeepSpeed", package="deepspeed",
        what=f"ZeRO {stage}, two micro batches", script="zero", arguments=(f"stage={stage}",), slow_after=60 * 2,
        variables=DEEPSPEED,
    )  # fmt: skip


def of_titan(name: str, what: str, *arguments: str) -> Row:
    """Return a row of torchtitan's own trainer."""
    return Row(
        name=f"torchtitan{name}", framework="torchtitan", package="torchtitan", script="titan", arguments=arguments,
        what=f"its `Trainer`, two layers of its debug model, {what}", slow_ms=150,
        variables={"JOB_STEPS": "120", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},  # what compiling says, each time
        slow_after=40, unseen=CPU_FOR_DEVICE,
    )  # fmt: skip


def of_mpi(name: str, framework: str, package: str, program: str, variables: str, *options: str) -> Row:
    """Return a row of DDP whose ranks are numbered by that program of an MPI, in those two of its variables."""
    return Row(
        name=name, framework=framework, package=package, what=f"DDP, ranks started by `{program}`", script="by_number",
        arguments=tuple(variables.split()), slow_ms=40,
        launcher=(str(Path(sys.executable).with_name(program)), *options, *PLAIN),
    )  # fmt: skip


def of_olmo(name: str, what: str, bookkeeping: str, unseen: str = "") -> Row:
    """Return a row of OLMo-core's trainer."""
    return Row(
        name=name, framework="OLMo-core", package="ai2-olmo-core", script="olmo_train", arguments=(bookkeeping,),
        what=f"its `Trainer` and `TransformerTrainModule`, FSDP2, accumulation of two, checkpoints, {what}",
        slow_ms=60, slow_after=60 * 2, unseen=unseen,
    )  # fmt: skip


def of_lightning(strategy: str, what: str) -> Row:
    """Return a row of Lightning's Trainer with that strategy, started by its own launcher."""
    return Row(
        name=f"lightning-{strategy.replace('_', '-')}", framework="Lightning", package="lightning",
        what=f"`Trainer`, its own launcher, {what}, validation", script="lightning_train", arguments=(strategy,),
        launcher=PLAIN,
    )  # fmt: skip


def of_megatron(name: str, what: str, *arguments: str) -> Row:
    """Return a row of Megatron-core: two micro batches a step."""
    return Row(
        name=f"megatron-{name}", framework="Megatron-core", package="megatron-core", what=what, script="megatron_gpt",
        arguments=arguments, slow_after=60 * 2, unseen=CPU_FOR_CUDA,
    )  # fmt: skip


CPU_FOR_CUDA: Final = (
    "its code asks `torch.cuda` for the device; in this job the CPU stands in for it (`cpu_for_cuda.py`), so what it "
    "does with streams is not run"
)
IN_CALLBACKS: Final = (
    "once its compression begins (here after ten steps), the hook starts collectives in callbacks on gloo's threads, "
    "which torch's profiler does not record there: windows that lack them are left out (`collectives_lost`), so own "
    "times are known in few steps, and the verdict says so"
)
RAY: Final = {
    "RAY_raylet_start_wait_time_s": "300", "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0",
}  # fmt: skip
"""Where others use the cores, too, its processes need more than the 30 s that they are given, and its workers, which by
default are nicer than everybody, wait for whole steps.
"""
CPU_FOR_DEVICE: Final = (
    "it takes a machine without an accelerator for one with CUDA, and wants a later torch; in this job (`titan.py`) "
    "the CPU answers for both, with an attention that has a backward there, so what it does with streams is not run"
)
NO_REPLICA_LEAVES: Final = (
    "both replicas are ranks of one launcher, so one run; none of them leaves and comes back here"
)
NOT_COMPILED: Final = (
    "it compiles its model, which is switched off here (`TORCH_COMPILE_DISABLE`): that takes minutes on a CPU; its "
    "`setup` shards by FSDP1, which Lightning refuses on CPUs"
)
ON_ANOTHER_THREAD: Final = "what it reduces on another thread is in no window: it is counted, and left out"
NO_IMAGES: Final = (
    "it wants torchvision, which loads with a torch for CUDA only: in this job empty names stand in for it, so what it "
    "does to images is not run"
)
CPU_AS_PLUGIN: Final = (
    "it has no engine for a CPU; in this job the CPU is a device by its plug-in, and uses the engine for CUDA, so what "
    "it does with streams and a device's memory is not run"
)
NO_MEMORY_OF_CPU: Final = (
    "it says that it does not train on CPUs; in this job its reports of a device's memory are left out"
)
EACH_NODE: Final = 'PET_NODE_RANK=1 "$@" & PET_NODE_RANK=0 "$@" && wait $!'
TRAINJOB: Final = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "29571",
}  # fmt: skip
DEEPSPEED: Final = {"DS_ACCELERATOR": "cpu"}
ROWS: Final[tuple[Row, ...]] = (
    of_torch("ddp-fp16-hook", "DDP, `fp16_compress_hook`", "ddp", "fp16_hook"),
    of_torch("ddp-power-sgd", "DDP, `powerSGD_hook`", "ddp", "power_sgd", unseen=IN_CALLBACKS),
    of_torch("ddp-static-graph", "DDP, `static_graph`", "ddp", "static_graph"),
    of_torch("ddp-join", "DDP, `Join` of unequally many batches", "ddp", "join"),
    of_torch("ddp-sharded-optimizer", "DDP, `ZeroRedundancyOptimizer`", "ddp", "sharded_optimizer"),
    of_torch("fsdp1", "FSDP1, `FULL_SHARD`", "fsdp1", "FULL_SHARD"),
    of_torch("fsdp1-grad-op", "FSDP1, `SHARD_GRAD_OP`", "fsdp1", "SHARD_GRAD_OP"),
    of_torch("fsdp2", "FSDP2", "fsdp2", "1"),
    of_torch("hsdp", "FSDP2 as HSDP, 2 x 2", "fsdp2", "2", ranks=4),
    of_torch("tensor-parallel", "DTensor, tensor parallel", "tensor_parallel", "1"),
    of_torch("tensor-parallel-fsdp2", "DTensor, tensor parallel and FSDP2, 2 x 2", "tensor_parallel", "2", ranks=4),
    of_pipeline("pipeline-gpipe", "GPipe", "GPipe"),
    of_pipeline("pipeline-1f1b", "1F1B", "1F1B"),
    of_pipeline("pipeline-interleaved", "interleaved 1F1B, two stages a rank", "Interleaved1F1B"),
    of_pipeline("pipeline-zero-bubble", "interleaved zero-bubble, two stages a rank", "InterleavedZeroBubble"),
    of_pipeline("pipeline-zbv", "ZBV zero-bubble, two stages a rank", "ZBVZeroBubble"),
    of_pipeline("pipeline-dualpipev", "DualPipeV, two stages a rank", "DualPipeV"),
    *map(of_zero, range(4)),
    Row(
        name="deepspeed-launcher",
        framework="DeepSpeed",
        package="deepspeed",
        script="zero",
        arguments=("stage=1",),
        what="ZeRO 1, two micro batches, by its own launcher",
        slow_after=60 * 2,
        variables=DEEPSPEED,
        launcher=(*PLAIN, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"),
    ),
    Row(
        name="deepspeed-pipeline",
        framework="DeepSpeed",
        package="deepspeed",
        script="zero_pipe",
        slow_ms=6,
        what="its pipeline engine, two stages, four micro batches",
        slow_after=60 * 4,
        variables=DEEPSPEED,
    ),
    of_megatron("tp", "GPT, tensor parallel 2", "tp=2"),
    of_megatron("pp", "GPT, pipeline parallel 2, 1F1B", "pp=2"),
    of_megatron("pp-interleaved", "GPT, pipeline parallel 2, two chunks a rank, interleaved 1F1B", "pp=2", "vp=2"),
    of_megatron("ep", "GPT, expert parallel 2, four experts", "ep=2"),
    of_megatron("cp", "GPT, context parallel 2", "cp=2"),
    of_megatron("dp", "GPT, data parallel 2, distributed optimizer", "sharded=1"),
    of_titan("", "FSDP2"),
    of_titan("-tp", "tensor parallel 2", "tensor_parallel_degree=2"),
    of_titan("-pp", "pipeline parallel 2, 1F1B", "pipeline_parallel_degree=2"),
    of_titan("-compile", "FSDP2, `compile`", "compile=1"),
    of_titan("-full-ac", "FSDP2, full activation checkpointing, accumulation of two", "full_ac=1", "accumulated=2"),
    Row(
        name="transformers",
        framework="Transformers",
        package="transformers",
        what="`Trainer`, accumulation of two, evaluations, checkpoints",
        script="hf_trainer",
        slow_after=60 * 2,
    ),
    Row(
        name="accelerate",
        framework="Accelerate",
        package="accelerate",
        what="`Accelerator`, accumulation of two",
        script="accelerate_train",
        slow_after=60 * 2,
    ),
    Row(
        name="accelerate-launch",
        framework="Accelerate",
        package="accelerate",
        what="`Accelerator`, accumulation of two, by `accelerate launch --multi_gpu`",
        script="accelerate_train",
        slow_after=60 * 2,
        launcher=(
            *PLAIN,
            "-m",
            "accelerate.commands.launch",
            "--multi_gpu",
            "--num_processes",
            "2",
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
        ),
    ),
    of_lightning("ddp", "DDP"),
    of_lightning("fsdp", "FSDP"),
    of_lightning("tensor_parallel", "tensor parallel 2 by `ModelParallelStrategy`"),
    Row(
        name="fabric",
        framework="Lightning",
        package="lightning",
        what="Fabric, its own launcher, DDP",
        script="fabric_train",
        launcher=PLAIN,
    ),
    Row(
        name="torchft",
        framework="torchft",
        package="torchft",
        what="two replicas of a rank each, its DDP and optimizer, a quorum in each step",
        script="ft",
        variables={"RUST_LOG": "error"},
        unseen=NO_REPLICA_LEAVES,
    ),
    Row(
        name="litgpt",
        framework="LitGPT",
        package="litgpt",
        what="its `pretrain.main` with DDP, accumulation of two, validations, checkpoints",
        script="litgpt_pretrain",
        arguments=("tiny",),
        launcher=PLAIN,
        slow_ms=25,
        slow_after=60 * 2,
        variables={"TORCH_COMPILE_DISABLE": "1"},
        unseen=NOT_COMPILED,
    ),
    Row(
        name="torchtune",
        framework="torchtune",
        package="torchtune",
        what="its recipe `full_finetune_distributed`, FSDP2, accumulation of two, checkpoints",
        script="torchtune_recipe",
        slow_ms=60,
        slow_after=60 * 2,
        unseen=NO_MEMORY_OF_CPU,
    ),
    of_olmo("olmo-core", "metrics reduced by the training's thread", "sync"),
    of_olmo("olmo-core-async", "metrics reduced on a thread of its own", "async", unseen=ON_ANOTHER_THREAD),
    Row(
        name="composer",
        framework="Composer",
        package="mosaicml",
        what="its `Trainer`, DDP, accumulation of two, evaluations, checkpoints",
        script="composer_train",
        slow_ms=25,
        slow_after=60 * 2,
        variables={"NODE_RANK": "0"},
        unseen=NO_IMAGES,
    ),
    Row(
        name="ms-swift",
        framework="ms-swift",
        package="ms-swift",
        what="`SwiftSft`, accumulation of two, evaluations, checkpoints",
        script="swift_sft",
        slow_ms=25,
        slow_after=60 * 2,
        variables={"LOG_LEVEL": "ERROR"},
    ),
    Row(
        name="verl-sft",
        framework="verl",
        package="verl",
        what="`SFTTrainer`, its FSDP engine with FSDP2, accumulation of two, checkpoints",
        script="verl_sft",
        slow_ms=60,
        slow_after=40 * 2,
        variables={"JOB_STEPS": "120", "VERL_ENGINE_DEVICE": "cuda"},
        unseen=CPU_AS_PLUGIN,
    ),
    Row(
        name="verl-grpo",
        framework="verl",
        package="verl",
        what="GRPO by its `main_ppo`, answers by a server of vLLM",
        script="verl_grpo",
        launcher=PLAIN,
    ),
    Row(name="trl-sft", framework="TRL", package="trl", what="`SFTTrainer`", script="trl_sft"),
    Row(
        name="trl-grpo",
        framework="TRL",
        package="trl",
        what="`GRPOTrainer`: answers are generated and trained on in one process",
        script="trl_grpo",
    ),
    Row(
        name="ray-train",
        framework="Ray Train",
        package="ray",
        what="`TorchTrainer`, two workers",
        script="ray_train",
        launcher=PLAIN,
        variables=RAY,
    ),
    Row(
        name="srun",
        framework="PyTorch",
        package="torch",
        what="DDP, two tasks of `srun` in a Slurm of one node",
        script="by_number",
        arguments=("SLURM_PROCID", "SLURM_NTASKS"),
        launcher=(*PLAIN, "-m", "tests.frameworks.in_slurm", *PLAIN),
        variables={"JOB_STEPS": "150"},  # longer lines than those of its losses srun may cut
        slow_ms=40,
    ),
    Row(
        name="trainjob",
        framework="PyTorch",
        package="torch",
        what="DDP, two nodes of a rank each, by the variables that a TrainJob gives to torchrun",
        script="ddp",
        arguments=("static_graph",),
        launcher=("sh", "-c", EACH_NODE, "nodes", *PLAIN, "-m", "torch.distributed.run"),
        variables=TRAINJOB,
        unseen="both nodes are this machine",
    ),
    of_mpi(
        "open-mpi",
        "Open MPI",
        "openmpi",
        "prterun",
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE",
        *("--personality", "ompi", "--allow-run-as-root", "--host", "localhost:2", "-n", "2"),
    ),
    of_mpi("mpich", "MPICH", "mpich", "mpiexec.hydra", "PMI_RANK PMI_SIZE", "-n", "2"),
)
