"""Say where a run comes from: its scheduler, its user, its pod. Pure."""

from collections.abc import Iterable

import msgspec

from rankscope.measure.identity import RankIdentity


class RunOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of one rank reports of a run's origin, as a rule of rank 0: the id of its Slurm job, whose it is,
    and the namespace and name of its Kubernetes pod. None: not reported, or there is none.
    """

    slurm_job_id: str | None = None
    user: str | None = None
    k8s_namespace: str | None = None
    k8s_pod: str | None = None


UNKNOWN_ORIGIN = RunOrigin()


def find_origin(identities: Iterable[RankIdentity]) -> RunOrigin:
    """Return the origin as the rank with the lowest number reports it; unknown without a rank.

    >>> rank = {"run": "bert", "local_rank": 0, "world_size": 2, "node": "n0", "restart_count": 0, "pid": 7}
    >>> first = RankIdentity(rank=0, boot_id="0" * 8, slurm_job_id="4711", **rank)
    >>> find_origin([RankIdentity(rank=1, boot_id="1" * 8, **rank), first]).slurm_job_id
    '4711'
    """
    first = min(identities, key=lambda identity: identity.rank, default=None)
    if first is None:
        return UNKNOWN_ORIGIN
    return RunOrigin(
        slurm_job_id=first.slurm_job_id or None,
        user=first.user or None,
        k8s_namespace=first.k8s_namespace or None,
        k8s_pod=first.k8s_pod or None,
    )


def describe_origin(origin: RunOrigin) -> str:
    """Return what is known of the origin, in words; empty where nothing is.

    >>> describe_origin(RunOrigin(slurm_job_id="4711", user="ada"))
    'Slurm job 4711, user ada'
    >>> describe_origin(RunOrigin(k8s_namespace="ml", k8s_pod="bert-0"))
    'Kubernetes namespace ml, pod bert-0'
    """
    named = (
        ("Slurm job", origin.slurm_job_id),
        ("user", origin.user),
        ("Kubernetes namespace", origin.k8s_namespace),
        ("pod" if origin.k8s_namespace else "Kubernetes pod", origin.k8s_pod),
    )
    return ", ".join(f"{what} {value}" for what, value in named if value is not None)
