"""What to do about a finding: the one table of suggestions, by kind and cause, with the runbook that says more.

Findings, incidents, notifications and the pages in docs/runbooks all have their first advice, and the name of the page,
from here (`python -m tests.contract.suggestion_pages` writes the advice into the pages). A suggestion follows from the
cause; where that is not known, it names the measurement that shows it. RUN and N stand for what the finding names.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

UNATTRIBUTED: Final = "unattributed"

FREE_THE_HOST: Final = (
    "Give the host less to do for each kernel: torch.compile, CUDA graphs, a larger batch, fused optimizers. Move"
    " logging and other Python out of the step."
)
FREE_THE_ALLOCATOR: Final = (
    "No step should allocate from the driver: remove empty_cache from the step, and see that caching is on "
    "(PYTORCH_NO_CUDA_MEMORY_CACHING, PYTORCH_NO_HIP_MEMORY_CACHING). Leave more memory free: expandable_segments, "
    "a smaller batch."
)
LAUNCH_AHEAD: Final = (
    "Read numbers from the GPU every n-th step, not in each (.item(), .cpu(), print). Avoid nonzero, unique and "
    "boolean masks. Copy with non_blocking=True from pinned memory."
)
FEED_FASTER: Final = (
    "Give the loader more num_workers or a larger prefetch_factor, or make a sample cheaper: faster storage, decoding "
    "ahead of time."
)
FREE_THE_CORES: Final = (
    "See what else runs on the machine (`top`), and whether the container has a CPU for each thread. If not: fewer "
    "ranks or loader workers, a lower OMP_NUM_THREADS."
)
COMMUNICATE_LESS: Final = (
    "Communicate less often: gradient accumulation under no_sync, a larger batch. Or less: gradients in bf16 (a DDP "
    "communication hook), sharding within a node."
)
OVERLAP: Final = (
    "Start communication earlier. DDP: smaller buckets (bucket_cap_mb), gradient_as_bucket_view, no "
    "find_unused_parameters. FSDP: prefetching. Own collectives: async_op=True, waited for as late as possible."
)
SYNCHRONIZES: Final = "host_device_sync"
UNSEEN: Final = "unseen_wait"
PINNED: Final = "pinned"
OF_GPU: Final = "gpu"
LEFT: Final = "left"
"""Variants of a suggestion: the host waits for its GPU; something that is not measured is waited for; what is copied is
in pinned memory; it was the memory of a GPU; a rank had left the others.
"""
_LEFT_EARLY: Final = (
    "See in the log of the rank that ended first why it left: an error, a signal, or no more data (torch's "
    "Join). Restart from the last checkpoint."
)

RECOMPILED: Final = (
    "Keep what changes out of the compiled code: mark_dynamic or dynamic=True for sizes, tensors for numbers, batches "
    "padded to few sizes. TORCH_LOGS=recompiles lists all guards that fail."
)

_SLOW_RANK: Final = {
    "recompilation": RECOMPILED,
    "data_loading": (
        "Check the disk and network storage of its node, and the CPUs that its loader's workers get. See whether "
        "its samples are larger than those of its peers."
    ),
    "storage": (
        "Check the disk or network storage of its node, and what else uses it (iostat). Save asynchronously "
        "(torch.distributed.checkpoint.async_save), and read data ahead of time."
    ),
    "garbage_collection": (
        "Keep Python's garbage collector out of the step: gc.freeze() after the start, gc.disable(), gc.collect() "
        "at the same steps on all ranks. See what piles up on this rank."
    ),
    "gpu_fault": (
        "Restart the run without this GPU, and diagnose it (dcgmi diag -r 3). A pending row remapping needs a "
        "reset; replace a GPU whose fault comes back."
    ),
    "gpu_thermal_throttle": (
        "Check the cooling of its node: fans, inlet temperature, the load of the GPUs beside it. Exclude the node if "
        "it stays hot."
    ),
    "gpu_power_cap": (
        "Compare its power limit with that of a peer (nvidia-smi -q -d POWER), and check the power supply of the node. "
        "Raise the limit, or exclude the node."
    ),
    "gpu_slow_clock": (
        "Compare its clocks with those of a peer (nvidia-smi -q -d CLOCK,PERFORMANCE). Locked clocks are unlocked by "
        "nvidia-smi -rgc; exclude the node if the clock stays low."
    ),
    "gpu_compute": (
        "See what else uses this GPU (nvidia-smi). Measure it outside of the run against others (torchrun "
        "--nproc-per-node 8 -m rankscope.agent.preflight); replace it if it is slow there, too."
    ),
    "more_work": (
        "No hardware is at fault: the rank has more to compute. Check padding, sampling, and the balance of layers and "
        "experts."
    ),
    "memory_pressure": (
        "Compare torch.cuda.memory_summary() with a peer's, give it less to hold, and remove empty_cache from the "
        "step. Where it reads pages from disk, the host is short of memory."
    ),
    SYNCHRONIZES: (
        "Read numbers from the GPU less often (.item(), .cpu(), boolean masks, torch.cuda.synchronize()), first at "
        "the line that is named. Or find why only this rank does."
    ),
    "pcie_downgrade": (
        "Compare the GPU's link with a peer's (PCI in nvidia-smi -q) while both compute. Reseat the GPU or its "
        "riser, or exclude the node."
    ),
    "slow_copies": (
        "Compare with a peer: the PCIe link while both copy (nvidia-smi -q), the NUMA node of the process "
        "(numactl --show), whether batches are pinned."
    ),
    "host_cpu": (
        "Look at the line that samples name (rankscope status RUN --rank N), else compare `py-spy top` with a "
        "peer's. Move other threads that it names elsewhere."
    ),
    UNSEEN: (
        "Look at the line that samples name (rankscope status RUN --rank N), else run `py-spy dump` while it "
        "is slow. Look for storage, locks and sleeps."
    ),
    "cpu_pressure": (
        "See what else runs on its machine (`top`), and whether ranks, loader workers and OMP_NUM_THREADS exceed "
        "its cores. If the hypervisor is named, move the rank."
    ),
    UNATTRIBUTED: (
        "A capture shows what it does beyond a peer: rankscope capture RUN --ranks around:N --wait. Without a "
        "control token: torch.profiler on both, then rankscope analyze."
    ),
}
_SLOWER_THAN_BEFORE: Final = {
    "recompilation": RECOMPILED,
    "data_loading": (
        "Check the storage that these ranks share, and what changed in the data at that step (another shard, longer "
        "samples). Then give the loaders more num_workers."
    ),
    "slow_link": (
        "See what changed on the network at that step: other jobs, errors of cards. If nccl-tests (all_reduce_perf) "
        "are slow too, replace cable or card, or exclude the node."
    ),
    "garbage_collection": (
        "Collect at the same step on all ranks: gc.freeze() after the start, gc.disable(), gc.collect() every n-th "
        "step. See which objects pile up from step to step."
    ),
    "gpu_thermal_throttle": "Check the cooling that the nodes of these ranks share: rack, inlet temperature, fans.",
    "gpu_power_cap": (
        "See who changed the power limit of these GPUs (nvidia-smi -q -d POWER), and what limits the power of their "
        "rack."
    ),
    "gpu_slow_clock": (
        "Compare the clocks of these GPUs with those of others (nvidia-smi -q -d CLOCK,PERFORMANCE). Locked clocks are "
        "unlocked by nvidia-smi -rgc."
    ),
    "gpu_compute": (
        "The same work takes the GPUs longer. Compare their clocks, power limits and temperatures with those "
        "before that step, on the dashboard or by nvidia-smi -q -d CLOCK,POWER,PERFORMANCE."
    ),
    "more_work": (
        "Find what makes the model compute more from that step on: longer sequences, a schedule in the code, layers "
        "or experts that are used more."
    ),
    "host_cpu": (
        "See what Python does more since that step (`py-spy top` on a rank): lists that grow, logging, callbacks, a "
        "schedule in the training code."
    ),
    UNSEEN: (
        "Run `py-spy dump` on a few ranks: look for storage, locks, and communication outside of torch's "
        "collectives. A single rank may be late where no report shows it."
    ),
    "cpu_pressure": FREE_THE_CORES,
    UNATTRIBUTED: (
        "See which part of the step has grown: rankscope compare RUN@steps 0:N RUN@steps N: --store FILE. See a "
        "step of now: rankscope capture RUN."
    ),
}


class KindAdvice(NamedTuple):
    """What to do about one kind of finding: by cause, and the name of its page in docs/runbooks. A key `CAUSE: VARIANT`
    is for findings of that cause of which more is known.
    """

    runbook: str
    by_cause: Mapping[str, str]


FINDINGS_PAGE: Final = "findings"
"""Page of the kinds of which no alert is made."""
ADVICE: Final[Mapping[str, KindAdvice]] = {
    "straggler": KindAdvice("RankscopeStragglerRank", _SLOW_RANK),
    "slow_link": KindAdvice("RankscopeRunSlower", {
        "slow_link": (
            "Measure these links outside the run with nccl-tests (all_reduce_perf). Slow there, too: replace the "
            "cable or card, or exclude the node. If not, other traffic disturbs them."
        ),
    }),
    "stage_slowdown": KindAdvice("RankscopeRunSlower", _SLOWER_THAN_BEFORE),
    "run_slowdown": KindAdvice("RankscopeRunSlower", _SLOWER_THAN_BEFORE),
    "slower_than_earlier_runs": KindAdvice("RankscopeRunSlower", {
        "slower_than_earlier_runs": (
            "See what has changed: nodes, GPU model, drivers, versions, where the data lie. Compare it with the "
            "earlier run of the finding: rankscope compare EARLIER RUN --store FILE."
        ),
    }),
    "hang": KindAdvice("RankscopeRunStalled", {
        "dead_rank": "Find out how the rank ended. The ranks that wait for it cannot continue: restart the run.",
        "missing_rank": (
            "Continue its process if it is stopped (kill -CONT PID). Else read its stack (rankscope status RUN "
            "--rank N): that call keeps the others waiting."
        ),
        "order_mismatch": "Look for a branch that not all ranks take: all must call the same collectives in one order.",
        "silent_rank": "Check its machine: the power, the network, and whether the process is still alive.",
        "busy_rank": "Share this work among the ranks, do it less often, or set stall_s to more than it takes.",
        "data_wait": "Look at its data loader and at the storage behind it: its stack shows what the batch waits for.",
        "deadlock": (
            "Look for collectives called in different orders, and for a send or receive without its other end."
        ),
        "unmatched_transfer": (
            "Look for a send or receive that one of the ranks does not call, or calls in another order."
        ),
        "all_in_collective": "Check the network and the devices of the group: links, switches, Xid errors.",
        UNATTRIBUTED: (
            "See where the stalled ranks are: rankscope status RUN --rank N has the line, `py-spy dump` on a "
            "rank the stacks of all threads."
        ),
    }),
    "out_of_memory": KindAdvice("RankscopeGpuMemoryNearlyFull", {
        "fragmentation": (
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start. Batches of one shape, and "
            "torch.cuda.empty_cache() between phases of different sizes, help too."
        ),
        "other_memory": (
            "See what else uses that GPU (nvidia-smi), and end it: another process, or an earlier one. For buffers "
            "of NCCL and libraries use a smaller batch."
        ),
        "memory_imbalance": (
            "In the first step others may not have reached their peak: use a smaller batch. Later: give that rank "
            "less, by even layers, or batches by tokens."
        ),
        "memory_full": (
            "Use a smaller batch with gradient accumulation, activation checkpointing, or FSDP. Look first for "
            "tensors that outlive their step, such as losses summed without .item()."
        ),
        UNATTRIBUTED: (
            "Use a smaller batch or activation checkpointing; with capture_folder set, a memory snapshot shows what "
            "holds the memory (rankscope memory)."
        ),
    }),
    "memory_growth": KindAdvice("RankscopeHostMemoryGrows", {
        "host_memory": (
            "Find what is kept from step to step: losses without .item(), caches without a limit, logs "
            "(tracemalloc, memray). Until then save a checkpoint well before memory runs out."
        ),
    }),
    "data_bound": KindAdvice("RankscopeDataBound", {"data_bound": FEED_FASTER}),
    "host_bound": KindAdvice("RankscopeLowGpuUtilization", {
        "host_bound": FREE_THE_HOST,
        f"host_bound: {SYNCHRONIZES}": LAUNCH_AHEAD,
    }),
    "cpu_pressure": KindAdvice("RankscopeLowGpuUtilization", {"cpu_pressure": FREE_THE_CORES}),
    "low_gpu_utilization": KindAdvice("RankscopeLowGpuUtilization", {
        "low_gpu_utilization": (
            "See in a trace what the host does while its GPU is idle: rankscope capture RUN. As a rule: "
            "torch.compile, CUDA graphs, a larger batch."
        ),
        f"low_gpu_utilization: {UNSEEN}": (
            "Look at what the training threads wait for: `py-spy dump` on a rank, storage, locks, and communication "
            "outside of torch's collectives."
        ),
    }),
    "communication_bound": KindAdvice("RankscopeCommunicationBound", {"communication_bound": COMMUNICATE_LESS}),
    "serialized_communication": KindAdvice("RankscopeNoOverlap", {"serialized_communication": OVERLAP}),
    "copy_bound": KindAdvice(FINDINGS_PAGE, {
        "copy_bound": (
            "Pin the batches (DataLoader(pin_memory=True), tensor.pin_memory()) and copy them with non_blocking=True, "
            "best on a stream of their own while the batch before computes."
        ),
        f"copy_bound: {PINNED}": (
            "Copy the next batch on a stream of its own while this one computes. Or copy less: images in uint8, "
            "padding and conversion on the GPU."
        ),
    }),
    "memory_pressure": KindAdvice("RankscopeAllocatorRetries", {"memory_pressure": FREE_THE_ALLOCATOR}),
    "garbage_collection": KindAdvice(FINDINGS_PAGE, {
        "garbage_collection": (
            "Collect at the same step on all ranks: gc.freeze() after the start, gc.disable(), gc.collect() every "
            "n-th step. Pauses at one step cost one of them."
        ),
    }),
    "periodic_work": KindAdvice(FINDINGS_PAGE, {
        "periodic_work": (
            "Do it less often, or where no rank waits for it. Save checkpoints asynchronously, evaluate on all "
            "ranks, log without reading values from the GPU."
        ),
    }),
    "run_stalls": KindAdvice(FINDINGS_PAGE, {
        "run_stalls": (
            "Do it less often, or beside training: save asynchronously, keep loader workers (persistent_workers), "
            "upload and log in a thread."
        ),
    }),
    "unmatched_collectives": KindAdvice(FINDINGS_PAGE, {
        "unmatched_collectives": (
            "Look for a collective that not all ranks call: under a condition, after a caught error, in a last "
            "batch. Results may be wrong without a match."
        ),
    }),
    "slow_gpu_model": KindAdvice(FINDINGS_PAGE, {
        "slow_gpu_model": (
            "Run it on GPUs of one model, or give the ranks on the slower model less work. In synchronous training "
            "every step lasts as long as theirs."
        ),
    }),
    "imbalance": KindAdvice(FINDINGS_PAGE, {
        "more_work": (
            "Split the work evenly: move layers from the heaviest pipeline stage to the lightest, or balance the "
            "tokens of the experts."
        ),
    }),
    "more_work": KindAdvice(FINDINGS_PAGE, {
        "more_work": (
            "No hardware is at fault. Balance the tokens: a larger weight of the router's load-balancing loss or a "
            "capacity of the experts, samples packed to one length."
        ),
    }),
    "uneven_work": KindAdvice(FINDINGS_PAGE, {
        "data_imbalance": (
            "Give all ranks equal work in each step. Bucket samples by length, pack them into sequences of one "
            "length, or make batches of a fixed number of tokens."
        ),
        "cpu_pressure": FREE_THE_CORES,
        "data_loading": FEED_FASTER,
        UNATTRIBUTED: (
            "A capture of all ranks shows which part differs: rankscope capture RUN --ranks all --wait. If batches "
            "differ in length, report their tokens (rankscope.batch(tokens=...))."
        ),
    }),
    "nothing_heard": KindAdvice("RankscopeNothingHeard", {
        "nothing_heard": (
            "Look at the collector's machine and network first, then at the launchers' logs of the runs. What ranks "
            "have kept is sent once they reach it."
        ),
    }),
    "run_failure": KindAdvice("RankscopeRunFailed", {
        "failed": "Read the exception in the log of the first rank to fail; restart from the last checkpoint.",
        f"failed: {LEFT}": _LEFT_EARLY,
        "crashed": (
            "Read the line that the verdict names, and the core file of the first rank to fail. To rule out the "
            "agent, run once with RANKSCOPE_COLLECTIVE_WINDOWS=false and RANKSCOPE_FULL_WINDOWS=false."
        ),
        "killed": "Find out what ended the process on that node: a person, a scheduler, a limit of its cgroup.",
        "exit_unknown": (
            "Read how that process ended in the log of its launcher (torchrun, srun) and in the kernel's: its exit "
            "status could not be read."
        ),
        "out_of_memory": "Look at the host's memory: data loader workers, pinned memory, the container's limit.",
        f"out_of_memory: {OF_GPU}": (
            "The incident out_of_memory of this run says what held the GPU's memory and what would help; restart from "
            "the last checkpoint."
        ),
        "collective_timeout": (
            "The incident `hang` of this run names the rank that the others waited for; without one compare the "
            "stacks in their logs. Restart from the last checkpoint."
        ),
        f"collective_timeout: {LEFT}": _LEFT_EARLY,
        "lost": "Look at the machines: their power, their network, and whether the processes still run.",
        "not_heard": "Look at the collector's network, and whether the processes still run.",
        "interrupted": "If nobody meant to end it, see who did: the terminal, the launcher's log and the scheduler's.",
        "terminated": (
            "If nobody meant to end it, see what did: the launcher's log, and the scheduler's (time limit, preemption)."
        ),
        UNATTRIBUTED: "Read the logs of the launcher and of the ranks at that time.",
    }),
}  # fmt: skip
"""By kind of finding; the causes of each are those of docs/definitions.md and docs/detection.md."""
OF_A_SLOW_NODE: Final = "RankscopeStragglerNode"
"""Page about a straggler that is whole nodes."""
UNKNOWN_KIND: Final = "A capture shows what a step does: rankscope capture RUN."
"""For a finding that a later release has made."""


def suggest(kind: str, cause: str, variant: str = "") -> str:
    """Return what to do about a finding of this kind and cause; of an unknown cause, how to find it.

    >>> suggest("hang", "missing_rank")[:35]
    'Continue its process if it is stopp'
    >>> suggest("run_failure", "out_of_memory", "gpu")[:43]
    'The incident out_of_memory of this run says'
    """
    advice = ADVICE.get(kind)
    if advice is None:
        return UNKNOWN_KIND
    found = advice.by_cause.get(f"{cause}: {variant}") if variant else None
    return found or advice.by_cause.get(cause) or advice.by_cause.get(UNATTRIBUTED, UNKNOWN_KIND)


def fill_commands(suggestion: str, run: str, ranks: Sequence[int]) -> str:
    """Return a suggestion with the name of the run, and the first of `ranks`, in its commands, which then can be typed
    as they are.

    >>> fill_commands("See where it is: rankscope status RUN --rank N, or `py-spy dump`.", "bert", (2, 3))
    'See where it is: rankscope status bert --rank 2, or `py-spy dump`.'
    >>> fill_commands("A capture shows it: rankscope capture RUN --ranks around:N --wait.", "my run", (7,))
    "A capture shows it: rankscope capture 'my run' --ranks around:7 --wait."
    """
    named = re.sub(r"\bRUN\b", lambda _: shlex.quote(run), suggestion)
    return re.sub(r"(--rank |around:)N\b", rf"\g<1>{ranks[0]}", named) if ranks else named


def find_runbook(kind: str, nodes: Sequence[str]) -> str:
    """Return the name of the page in docs/runbooks about a finding of this kind, on these nodes as a whole; empty for a
    kind that is not known.

    >>> find_runbook("straggler", ()), find_runbook("straggler", ("node-1",)), find_runbook("of a later release", ())
    ('RankscopeStragglerRank', 'RankscopeStragglerNode', '')
    """
    if kind == "straggler" and nodes:
        return OF_A_SLOW_NODE
    return ADVICE[kind].runbook if kind in ADVICE else ""
