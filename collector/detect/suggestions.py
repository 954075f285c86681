"""What to do about a finding: the one table of suggestions, by kind and cause, with the runbook that says more.

Findings, incidents, notifications and the pages in docs/runbooks all have their first advice, and the name of the page,
from here (`python -m tests.contract.suggestion_pages` writes the advice into the pages). A suggestion follows from the
cause; where that is not known, it names the measurement that shows it. RUN and N stand for what the finding names.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

UNATTRIBUTED: Final = "unattributed"

FREE_THE_HOST: Final = (
    "Give the host less to do for each kernel: torch.compile, CUDA graphs, a larger batch, fused optimizers. Move"
    " logging and other Python out of the step."
)
FREE_THE_ALLOCATOR: Final = (
    "Steps should not allocate from the driver: check that caching is not off (PYTORCH_NO_CUDA_MEMORY_CACHING, "
    "PYTORCH_NO_HIP_MEMORY_CACHING) and that no code calls empty_cache in a step. See that memory is not so full "
    "that the "
    "cache is emptied (expandable_segments, a smaller batch)."
)
LAUNCH_AHEAD: Final = (
    "Read numbers less often: keep losses and metrics on the GPU and read them every n-th step instead of "
    ".item(), .cpu() or print. Avoid nonzero, unique and boolean masks (torch.where, fixed sizes). Copy with "
    "non_blocking=True "
    "from pinned memory."
)
FEED_FASTER: Final = (
    "Give the loader more num_workers or a larger prefetch_factor, or make a sample cheaper: faster storage, decoding "
    "ahead of time."
)
FREE_THE_CORES: Final = (
    "Find what else runs on the machine (`top`), and check whether the container has as many CPUs as its ranks have "
    "threads. If not, use fewer ranks or data loader workers or a lower OMP_NUM_THREADS, or pin each rank to cores of "
    "its own."
)
COMMUNICATE_LESS: Final = (
    "Communicate less often or less: gradient accumulation under no_sync, a larger batch for each rank, gradients"
    " in bf16 (a DDP communication hook). Or fewer and larger collectives, sharding within a node."
)
OVERLAP: Final = (
    "Let communication start earlier: DDP with smaller buckets (bucket_cap_mb) and gradient_as_bucket_view, "
    "without find_unused_parameters where not needed. FSDP with prefetching. Own collectives with async_op=True, "
    "waited for as "
    "late as possible."
)
SYNCHRONISES: Final = "host_device_sync"
UNSEEN: Final = "unseen_wait"
OF_GPU: Final = "gpu"
LEFT: Final = "left"
"""Variants of a suggestion: the host waits for its GPU; something that is not measured is waited for; it was the memory
of a GPU; a rank had left the others.
"""
_LEFT_EARLY: Final = (
    "See in the log of the rank that ended first why it left. It returned on an error, a handler of a signal ended it "
    "with status 0, or its data ran out (torch's Join, or the same number of batches on all ranks). Restart from the "
    "last checkpoint."
)

RECOMPILED: Final = (
    "Let what changes not be compiled in: torch.compile(dynamic=True) or torch._dynamo.mark_dynamic for a size, a "
    "tensor for a number, batches padded to few sizes. TORCH_LOGS=recompiles lists every guard that fails."
)

_SLOW_RANK: Final = {
    "recompilation": RECOMPILED,
    "data_loading": (
        "Check the disk and the network storage of its node, and the CPUs that its loader's workers get. See "
        "whether its "
        "samples are larger than those of its peers."
    ),
    "garbage_collection": (
        "Keep Python's garbage collector out of the step: gc.freeze() after the start, gc.disable(), and gc.collect() "
        "every n-th step, at the same step on all ranks. Then see which objects pile up on this rank."
    ),
    "gpu_fault": (
        "Restart the run without this GPU, and run the vendor's diagnosis on it (such as dcgmi diag -r 3). A pending "
        "row remapping needs a reset of the GPU; a GPU whose fault comes back must be replaced."
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
        "See what else uses this GPU (nvidia-smi), and measure it outside of the run against others (torchrun "
        "--nproc-per-node 8 -m rankscope.preflight, the vendor's diagnosis). Replace it if it is slow there, too."
    ),
    "more_work": (
        "No hardware is at fault: the rank has more to compute. Check padding, sampling, and the balance of layers and "
        "experts."
    ),
    "memory_pressure": (
        "See what it holds beyond a peer (torch.cuda.memory_summary() on both), give it less to hold, and remove calls "
        "of empty_cache from the step. Where it reads pages from disk, it is the host that is short of memory."
    ),
    SYNCHRONISES: (
        "Read numbers from the GPU less often (.item(), .cpu(), boolean masks, torch.cuda.synchronize()), at the "
        "line that is named where one is. Or find why only this rank does."
    ),
    "pcie_downgrade": (
        "Compare the GPU's link with that of a peer (PCI in nvidia-smi -q) while both compute: idle GPUs lower the "
        "speed of their link. Reseat the GPU or its riser, or exclude "
        "the node."
    ),
    "host_cpu": (
        "Look at the line that samples name (rankscope status --run RUN --rank N). Where they name none, see what"
        " its training thread does beyond that of a peer (`py-spy top` on both), and compare the clocks of their "
        "CPUs. "
        "Where the finding names other threads (logging, prefetching, metrics), move them to a process of their own."
    ),
    UNSEEN: (
        "Look at the line that samples name (rankscope status --run RUN --rank N). Where they name none, run `py-"
        "spy dump` on it while it is slow: look for storage, locks, sleeps, and communication outside of torch's "
        "collectives. The rank it waits for may be the slow one."
    ),
    "cpu_pressure": (
        "See what else runs on its machine (`top`), the CPU limit of its container, and whether ranks, data loader "
        "workers and OMP_NUM_THREADS together exceed the cores. Where the finding names the hypervisor, move the rank."
    ),
    UNATTRIBUTED: (
        "A capture shows where its time goes beyond that of a peer: rankscope capture RUN --ranks around:N --wait. "
        "Without a control token: torch.profiler on both ranks, then rankscope analyze."
    ),
}
_SLOWER_THAN_BEFORE: Final = {
    "recompilation": RECOMPILED,
    "data_loading": (
        "Check the storage that these ranks share, and what changed in the data at that step (another shard, longer "
        "samples). Then give the loaders more num_workers or a larger prefetch_factor."
    ),
    "slow_link": (
        "See what changed on the network at that step: other jobs on the same links, errors of cards and switches. "
        "Then measure it outside of the run with nccl-tests (all_reduce_perf): if it is slow there, too, replace the "
        "cable or card, or exclude the node."
    ),
    "garbage_collection": (
        "Keep Python's garbage collector out of the step: gc.freeze() after the start, gc.disable(), and gc.collect() "
        "every n-th step, at the same step on all ranks. It takes longer the more objects are kept: see which pile up "
        "from step to step."
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
        "Find what makes the model compute more from that step on: longer sequences, a schedule in the training code, "
        "layers or experts that are used more."
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
        "The store shows which part of the step has grown: rankscope compare RUN@steps 0:N RUN@steps N: --store FILE. "
        "A capture shows what a step does now: rankscope capture RUN."
    ),
}


class Advice(NamedTuple):
    """What to do about one kind of finding: by cause, and the name of its page in docs/runbooks. A key `CAUSE: VARIANT`
    is for findings of that cause of which more is known.
    """

    runbook: str
    by_cause: Mapping[str, str]


FINDINGS_PAGE: Final = "findings"
"""Page of the kinds of which no alert is made."""
ADVICE: Final[Mapping[str, Advice]] = {
    "straggler": Advice("RankscopeStragglerRank", _SLOW_RANK),
    "slow_link": Advice("RankscopeRunSlower", {
        "slow_link": (
            "Measure these links outside the run with nccl-tests (all_reduce_perf). Look at the error counters of "
            "the network cards and switch ports between them and at `nvidia-smi nvlink -e`. If they are slow there, "
            "too, replace the cable or card, or exclude the node; if not, other traffic disturbs them during the run."
        ),
    }),
    "stage_slowdown": Advice("RankscopeRunSlower", _SLOWER_THAN_BEFORE),
    "run_slowdown": Advice("RankscopeRunSlower", _SLOWER_THAN_BEFORE),
    "slower_than_earlier_runs": Advice("RankscopeRunSlower", {
        "slower_than_earlier_runs": (
            "See first what has changed: nodes, GPU model, drivers, versions, where the data lie. Then compare it with "
            "the earlier run that the finding names (latest_earlier_run): rankscope compare EARLIER RUN --store FILE."
        ),
    }),
    "hang": Advice("RankscopeRunStalled", {
        "dead_rank": "Find out how the rank ended. The ranks that wait for it cannot continue: restart the run.",
        "missing_rank": (
            "If the finding says that its process is stopped, continue it (kill -CONT PID). Otherwise read its stack "
            "(rankscope status --run RUN --rank N, or `py-spy dump`): the call it is in keeps the other ranks waiting."
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
            "See where the stalled ranks are: rankscope status --run RUN --rank N has the line, `py-spy dump` on a "
            "rank the stacks of all threads."
        ),
    }),
    "out_of_memory": Advice("RankscopeGpuMemoryNearlyFull", {
        "fragmentation": (
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start, unless it is set: segments can "
            "then grow, so that fewer pieces are too small. Batches of one shape, and torch.cuda.empty_cache() between "
            "phases of different sizes, help too."
        ),
        "other_memory": (
            "See what else uses that GPU (nvidia-smi): another process, an earlier one that has not ended, or buffers "
            "of NCCL and libraries. End such a process; for buffers leave more memory free (a smaller batch)."
        ),
        "memory_imbalance": (
            "If this was the first step, the other ranks may not have reached their peak yet: try a smaller batch. If "
            "it was a later one, give that rank less to hold: "
            "layers or shards more evenly, batches by tokens instead of samples, nothing of the whole run (evaluation, "
            "gathered checkpoints) on the GPU of one rank."
        ),
        "memory_full": (
            "Use a smaller batch with gradient accumulation, activation checkpointing, or shard parameters and "
            "optimizer state (FSDP). Before that, look for tensors that outlive their step: losses that are summed "
            "without .item()."
        ),
        UNATTRIBUTED: (
            "Use a smaller batch or activation checkpointing; a memory snapshot shows what holds the memory "
            "(torch.cuda.memory._dump_snapshot(), then rankscope memory)."
        ),
    }),
    "memory_growth": Advice("RankscopeHostMemoryGrows", {
        "host_memory": (
            "Look for what is kept from step to step: losses or outputs in lists without .item() or .detach(), caches "
            "without a limit, logs in memory. tracemalloc compares two moments by line; memray attaches to a running "
            "process. Until the cause is found, save a checkpoint well before the memory runs out, and restart from it."
        ),
    }),
    "data_bound": Advice("RankscopeDataBound", {"data_bound": FEED_FASTER}),
    "host_bound": Advice("RankscopeLowGpuUtilisation", {
        "host_bound": FREE_THE_HOST,
        f"host_bound: {SYNCHRONISES}": LAUNCH_AHEAD,
    }),
    "cpu_pressure": Advice("RankscopeLowGpuUtilisation", {"cpu_pressure": FREE_THE_CORES}),
    "low_gpu_utilisation": Advice("RankscopeLowGpuUtilisation", {
        "low_gpu_utilisation": (
            "Look at one rank's step in a trace (rankscope capture RUN, or torch.profiler and rankscope analyze): what "
            f"its host does while its GPU is idle. {FREE_THE_HOST}"
        ),
        f"low_gpu_utilisation: {UNSEEN}": (
            "Look at what the training threads wait for: `py-spy dump` on a rank, storage, locks, and communication "
            "outside of torch's collectives."
        ),
    }),
    "communication_bound": Advice("RankscopeCommunicationBound", {"communication_bound": COMMUNICATE_LESS}),
    "serialised_communication": Advice("RankscopeNoOverlap", {"serialised_communication": OVERLAP}),
    "memory_pressure": Advice("RankscopeAllocatorRetries", {"memory_pressure": FREE_THE_ALLOCATOR}),
    "garbage_collection": Advice(FINDINGS_PAGE, {
        "garbage_collection": (
            "Collect at the same step on all ranks: gc.freeze() after the start, gc.disable(), and gc.collect() every "
            "n-th step. Pauses at one step cost the run one of them, not the sum."
        ),
    }),
    "periodic_work": Advice(FINDINGS_PAGE, {
        "periodic_work": (
            "Do it less often, or where no rank waits for it. Save checkpoints asynchronously or on all ranks, "
            "evaluate on all ranks, log without reading values from the GPU."
        ),
    }),
    "unmatched_collectives": Advice(FINDINGS_PAGE, {
        "unmatched_collectives": (
            "Look for a collective that not all ranks call: under a condition, after an error that was caught, in a "
            "last batch that some ranks do not have. Unless the finding says that the calls of a step still "
            "match, the rank's next one meets a different one of the others, and what they compute may be wrong."
        ),
    }),
    "slow_gpu_model": Advice(FINDINGS_PAGE, {
        "slow_gpu_model": (
            "Run it on GPUs of one model, or give the ranks on the slower model less work. In synchronous training "
            "every step lasts as long as theirs."
        ),
    }),
    "imbalance": Advice(FINDINGS_PAGE, {
        "more_work": (
            "Split the work evenly: move layers from the heaviest pipeline stage to the lightest, or balance the "
            "tokens of the experts."
        ),
    }),
    "uneven_work": Advice(FINDINGS_PAGE, {
        "data_imbalance": (
            "Give all ranks equal work in each step. Bucket the samples by length, pack them into sequences of one "
            "length, or make batches of a fixed number of tokens instead of samples."
        ),
        "cpu_pressure": FREE_THE_CORES,
        "data_loading": FEED_FASTER,
        UNATTRIBUTED: (
            "A capture of all ranks shows which part of the step differs: rankscope capture RUN --ranks all --wait. If "
            "batches differ in length, report their tokens (rankscope.batch(tokens=...)), so that it can be compared."
        ),
    }),
    "nothing_heard": Advice("RankscopeNothingHeard", {
        "nothing_heard": (
            "Look at the collector's machine and its network first, then at the runs: their launchers' logs say "
            "whether they go on. What ranks have kept is sent once they reach it."
        ),
    }),
    "run_failure": Advice("RankscopeRunFailed", {
        "failed": "Read the exception in the log of the first rank to fail; restart from the last checkpoint.",
        f"failed: {LEFT}": _LEFT_EARLY,
        "crashed": (
            "Read the line that the verdict names, and the core file of the first rank to fail. To rule out the "
            "agent's profiler windows, run once with RANKSCOPE_COLLECTIVE_WINDOWS=false and "
            "RANKSCOPE_FULL_WINDOWS=false."
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
            "See which rank the others waited for: the incident `hang` of this run names it, where there is one. "
            "Otherwise compare the stacks in the logs of the ranks. Then restart from the last checkpoint."
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

    >>> suggest("hang", "missing_rank")[:57]
    'If the finding says that its process is stopped, continue'
    >>> suggest("run_failure", "out_of_memory", "gpu")[:43]
    'The incident out_of_memory of this run says'
    """
    advice = ADVICE.get(kind)
    if advice is None:
        return UNKNOWN_KIND
    found = advice.by_cause.get(f"{cause}: {variant}") if variant else None
    return found or advice.by_cause.get(cause) or advice.by_cause.get(UNATTRIBUTED, UNKNOWN_KIND)


def find_runbook(kind: str, nodes: Sequence[str]) -> str:
    """Return the name of the page in docs/runbooks about a finding of this kind, on these nodes as a whole; empty for a
    kind that is not known.

    >>> find_runbook("straggler", ()), find_runbook("straggler", ("node-1",)), find_runbook("of a later release", ())
    ('RankscopeStragglerRank', 'RankscopeStragglerNode', '')
    """
    if kind == "straggler" and nodes:
        return OF_A_SLOW_NODE
    return ADVICE[kind].runbook if kind in ADVICE else ""
