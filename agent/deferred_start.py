"""A rank that no launcher has told its number: torch.multiprocessing.spawn, srun, mpirun, Ray, notebooks.

Its script says it, when it calls init_process_group. So that call is watched for, and what the process then is, is
described with the variables that torchrun would have set.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rankscope.agent.guard import explain, log_line
from rankscope.agent.identity import is_this_machine
from rankscope.agent.steps.patches import Patch

INIT: Final = "init_process_group"


class _Launcher(NamedTuple):
    """How a launcher of processes, not of ranks, names what torchrun calls by its own names."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


LAUNCHERS: Final = (
    _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    _Launcher(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    _Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
)
"""Source: srun(1) and the manuals of Open MPI and of MPICH's Hydra, which Intel MPI has too."""

_AS_MANY_ON_EACH: Final = re.compile(r"(\d+)(?:\(x\d+\))?")
"""Slurm has 8(x4) for eight on each of four machines, and 8(x2),4 where they are not as many on each."""


def has_peer_processes(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process with others, of which it is not said that they train together."""
    return any(
        launcher.rank in environment and environment.get(launcher.world_size, "1") != "1" for launcher in LAUNCHERS
    )


def watch_for_group(on_group: Callable[[dict[str, str]], object]) -> None:
    """Have `on_group` called with the variables of `describe_group`, right after this process has joined its first
    process group. Nothing that goes wrong there reaches the script.
    """
    import torch.distributed as dist  # noqa: PLC0415 - the user's torch

    if not dist.is_available():
        return
    # Modules of torch's own have it by its name, which a script may come through: init_device_mesh does.
    original = dist.init_process_group
    owners = [
        module
        for name, module in tuple(sys.modules.items())
        if name.startswith("torch.distributed") and vars(module).get(INIT) is original
    ]

    def tell() -> None:
        try:
            for patch in patches:
                patch.revert()
            on_group(describe_group(os.environ))
        except Exception as error:  # noqa: BLE001
            log_line(f"not started ({explain('start', error)}); training goes on without it")

    patches = [Patch(owner, INIT, functools.partial(_tell_after, tell)) for owner in owners]
    for patch in patches:
        patch.apply()


def _tell_after(tell: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        tell()
        return result

    return init_process_group


def is_in_group() -> bool:
    """Whether this process has called init_process_group. Without torch it has not."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())


def describe_group(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would have told this member of the default group: the group's own word for rank and number of
    ranks, its store for the rendezvous, and for the place on the machine what is known.
    """
    import torch.distributed as dist  # noqa: PLC0415 - the user's torch

    rank, world_size = dist.get_rank(), dist.get_world_size()
    host, port = _find_store()
    store = {"MASTER_ADDR": host, "MASTER_PORT": port} if host and port else {}
    master = host or environment.get("MASTER_ADDR", "")
    place = _find_place_on_machine(environment, rank, world_size, master)
    return {**describe_launch(rank=rank, world_size=world_size), **store, **place}


def describe_launch(
    *, rank: int, world_size: int, local_rank: int | None = None, local_world_size: int | None = None
) -> dict[str, str]:
    """The variables of torchrun, from one who has started the processes itself. What is None is not known."""
    numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": local_world_size}
    return {name: str(number) for name, number in numbers.items() if number is not None}


def _find_store() -> tuple[str, str]:
    """Where the group's members have met; nothing for a store that has no address, as a file."""
    from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC0415 - the user's torch

    store = _get_default_store()
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return str(getattr(store, "host", "")), str(getattr(store, "port", ""))


def _find_place_on_machine(environment: Mapping[str, str], rank: int, world_size: int, master: str) -> dict[str, str]:
    """LOCAL_RANK, and LOCAL_WORLD_SIZE where it is known."""
    if "LOCAL_RANK" in environment:
        return {}
    for launcher in LAUNCHERS:
        numbers = environment.get(launcher.rank), environment.get(launcher.world_size)
        if numbers == (str(rank), str(world_size)) and launcher.local_rank in environment:  # else it started other ones
            found = {"LOCAL_RANK": environment[launcher.local_rank]}
            local_size = _AS_MANY_ON_EACH.fullmatch(environment.get(launcher.local_world_size, ""))
            return {**found, "LOCAL_WORLD_SIZE": local_size[1]} if local_size else found
    if is_this_machine(master):
        return describe_launch(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
    import torch  # noqa: PLC0415 - the user's torch

    devices = torch.cuda.device_count()
    return {"LOCAL_RANK": str(rank % devices)} if devices else {}  # a rank for each GPU, as everybody numbers them
