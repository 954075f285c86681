"""Define what a relay tells of the GPUs of its machine: who holds each, whether it works, which rank it is of."""

from typing import Annotated, Final

import msgspec

from rankscope.measure.bounds import Reasons, ShortName
from rankscope.measure.identity import Count, Label, RankNumber

NODE_GPUS_MAX: Final = 16
"""GPUs told of a machine; the largest have 16. With all their holders they have 34 KiB, below what any collector
accepts."""
HOLDERS_MAX: Final = 8
"""Holders told of a GPU: each with a context in its memory, or a job of the scheduler."""


class GpuHolder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process that has memory of a GPU, or with `pid` 0 a job to which the scheduler has given the GPU, and of which
    no such process is known.

    `user` is a name, or a number where the machine has no name for it; `job` is the id of a batch job, or `pod-` and
    the UID of a Kubernetes pod; `program` is the name of the program, without its arguments. Each is empty where it is
    not known. `memory_bytes` is what it has of the GPU's memory, None where the driver does not tell.
    """

    pid: Count
    user: ShortName = ""
    job: ShortName = ""
    program: ShortName = ""
    memory_bytes: Count | None = None


class HeldGpu(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A GPU of a machine, held or free: it is held where it has holders, or memory of it is in use.

    `utilization_ratio` is the share of the driver's last period in which a kernel ran (0 to 1). `held_ns` is for how
    long it has had the present users and jobs, None where it is free. `idle_ns` is for how long, at most `held_ns`, no
    reading found a kernel on it: 0 where the last one did, None where the utilization cannot be read. `run` and
    `rank` are of the rank whose reports name the GPU, `step_age_ns` is for how long none of its steps has ended, None
    for a GPU of no such rank. What cannot be read is None, with its reason in `absent`.
    """

    uuid: ShortName
    index: Count
    model: ShortName = ""
    memory_used_bytes: Count | None = None
    memory_total_bytes: Count | None = None
    utilization_ratio: float | None = None
    holders: Annotated[tuple[GpuHolder, ...], msgspec.Meta(max_length=HOLDERS_MAX)] = ()
    holders_left_out: Count = 0
    held_ns: Count | None = None
    idle_ns: Count | None = None
    run: Label = ""
    rank: RankNumber | None = None
    step_age_ns: Count | None = None
    absent: Reasons = {}


class NodeGpus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One reading of all GPUs of a machine, that took `took_ns`. `unread` is why there is none at all (no driver);
    empty where there is one.
    """

    node: Label
    gpus: Annotated[tuple[HeldGpu, ...], msgspec.Meta(max_length=NODE_GPUS_MAX)] = ()
    gpus_left_out: Count = 0
    took_ns: Count = 0
    unread: ShortName = ""
