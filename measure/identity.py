"""Identify the sender of a message: a run, a rank of it, and that rank's process."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, NewType

import msgspec

RunId = NewType("RunId", str)
"""Name of a training run as its launcher knows it (`--rdzv-id`), the same through elastic restarts."""

BootId = NewType("BootId", str)
"""Random name of one rank process, made when the agent starts, so that a restarted rank is distinguishable."""

LABEL_LENGTH_MAX = 128
"""Longest name of a run, group or node that is accepted; longer label values make Prometheus slow."""


Label = Annotated[str, msgspec.Meta(max_length=LABEL_LENGTH_MAX)]
RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RankIdentity(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Identity of one rank process of one run.

    `restart_count` counts the elastic restarts before this process (TORCHELASTIC_RESTART_COUNT); `pid` is the process
    id in its own namespace; `machine_id` names the booted machine, so that a collector on the same machine can check
    whether the process still runs. `slurm_job_id` is the id of its Slurm job, `user` whose process it is,
    `k8s_namespace` and `k8s_pod` are its Kubernetes pod's; empty: not known, or there is none.
    """

    run: Annotated[str, msgspec.Meta(min_length=1, max_length=LABEL_LENGTH_MAX)]
    rank: RankNumber
    local_rank: RankNumber
    world_size: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    node: Label
    restart_count: RankNumber
    boot_id: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    pid: Count
    machine_id: Label = ""
    slurm_job_id: Label = ""
    user: Label = ""
    k8s_namespace: Label = ""
    k8s_pod: Label = ""


def group_label(description: str, ranks: Sequence[int], world_size: int) -> str:
    """Return a name for a process group that all its members agree on and no other group of the run shares.

    torch's own `group_name` is a counter or a hash, which is not reliably different between sub-groups of one mesh
    dimension. So the description is joined with the members.

    >>> group_label("default_pg", [0, 1, 2, 3], 4)
    'default_pg'
    >>> group_label("mesh_tp", [2, 3], 4), group_label("mesh_dp", [0, 2], 4)
    ('mesh_tp/2-3', 'mesh_dp/0,2')
    """
    members = sorted(set(ranks))
    if members == list(range(world_size)):
        return description[:LABEL_LENGTH_MAX]
    label = f"{description}/{_format_ranks(members)}"
    if len(label) <= LABEL_LENGTH_MAX:
        return label
    digest = hashlib.sha256(label.encode()).hexdigest()[:12]
    return f"{description[:64]}/{members[0]}-{members[-1]}#{len(members)}#{digest}"


def _format_ranks(members: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for member in members:
        if spans and member == spans[-1][1] + 1:
            spans[-1][1] = member
        else:
            spans.append([member, member])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
