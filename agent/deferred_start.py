"""Starts the agent once init_process_group sets the rank: torch.multiprocessing.spawn, srun, mpirun, Ray, notebooks.

The call is patched; after it, the rank is described by the variables that torchrun would have set.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rankscope.agent.guard import explain, is_of_script, log_line
from rankscope.agent.identity import is_this_machine
from rankscope.agent.steps.patches import Patch, hide_from_compiler

INIT: Final = "init_process_group"
TRAINING_STEPS: Final = 20
"""Fewer steps of optimizers are a test, or a part of a program that only uses torch."""


class _Launcher(NamedTuple):
    """The variables of a process launcher that correspond to torchrun's."""

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
"""Source: srun(1) and the manuals of Open MPI and of MPICH's Hydra, which Intel MPI uses too."""

_EQUAL_PER_NODE: Final = re.compile(r"(\d+)(?:\(x\d+\))?")
"""Slurm writes 8(x4) for eight on each of four nodes, and 8(x2),4 if the nodes differ."""


def has_peer_processes(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher started this process together with others, which may or may not train together."""
    return any(
        launcher.rank in environment and environment.get(launcher.world_size, "1") != "1" for launcher in LAUNCHERS
    )


def watch_for_group(on_group: Callable[[dict[str, str]], object], before: Callable[[], object] = lambda: None) -> None:
    """Call `on_group` with the result of `describe_group` once this process has joined its first process group, and
    `before` when it is about to.

    No error of these calls reaches the script, but for what a signal handler of its own raises meanwhile.
    """
    import torch.distributed as dist  # noqa: PLC0415 - the user's torch

    if not dist.is_available():
        return
    # Some modules of torch have imported it by name (init_device_mesh).
    original = dist.init_process_group
    owners = [
        module
        for name, module in sys.modules.copy().items()  # another thread may import
        if name.startswith("torch.distributed") and vars(module).get(INIT) is original
    ]

    def prepare() -> None:
        try:
            before()
        except Exception as error:
            if is_of_script(error):
                raise
            log_line(f"collectives are not timed ({explain('start', error)}); training continues")

    def notify() -> None:
        try:
            for patch in patches:
                patch.revert()
            on_group(describe_group(os.environ))
        except Exception as error:
            if is_of_script(error):
                raise
            log_line(f"not started ({explain('start', error)}); training continues without it")

    # One wrapper for all of them: pickle looks for the same function where it is defined.
    wrapper = _notify_around(prepare, notify, original)
    patches = [Patch(owner, INIT, lambda _original: wrapper) for owner in owners]
    for patch in patches:
        patch.apply()


def watch_for_training(on_training: Callable[[], object]) -> None:
    """Call `on_training` once this process has stepped optimizers TRAINING_STEPS times; no error of it reaches the
    script. The hook stays: torch may be going through its hooks when the last step is counted.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 - the user's torch

    steps = 0

    def count(_optimizer: object, _args: object, _kwargs: object) -> None:
        nonlocal steps
        steps += 1
        if steps == TRAINING_STEPS:
            try:
                on_training()
            except Exception as error:
                if is_of_script(error):
                    raise
                log_line(f"not watched ({explain('start', error)}); training continues")

    def begin_anew() -> None:
        nonlocal steps
        steps = 0

    hide_from_compiler(count)
    register_optimizer_step_post_hook(count)
    os.register_at_fork(after_in_child=begin_anew)


def _notify_around(
    prepare: Callable[[], None], notify: Callable[[], None], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*arguments: Any, **named: Any) -> Any:
        prepare()
        result = original(*arguments, **named)
        notify()
        return result

    return init_process_group


def is_in_group() -> bool:
    """Return whether this process has called init_process_group; False without torch."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())


def describe_group(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for this member of the default group: rank, world size, store and, if known, the
    local rank.
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
    """Return torchrun's variables from known numbers; None means unknown."""
    numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": local_world_size}
    return {name: str(number) for name, number in numbers.items() if number is not None}


def _find_store() -> tuple[str, str]:
    """Return host and port of the group's store; empty for a store without address, such as a file."""
    from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC0415 - the user's torch

    store = _get_default_store()
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return str(getattr(store, "host", "")), str(getattr(store, "port", ""))


def _find_place_on_machine(environment: Mapping[str, str], rank: int, world_size: int, master: str) -> dict[str, str]:
    """Return LOCAL_RANK, and LOCAL_WORLD_SIZE if known."""
    if "LOCAL_RANK" in environment:
        return {}
    for launcher in LAUNCHERS:
        numbers = environment.get(launcher.rank), environment.get(launcher.world_size)
        if (
            numbers == (str(rank), str(world_size)) and launcher.local_rank in environment
        ):  # else it started other processes
            found = {"LOCAL_RANK": environment[launcher.local_rank]}
            local_size = _EQUAL_PER_NODE.fullmatch(environment.get(launcher.local_world_size, ""))
            return {**found, "LOCAL_WORLD_SIZE": local_size[1]} if local_size else found
    if is_this_machine(master):
        return describe_launch(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
    import torch  # noqa: PLC0415 - the user's torch

    devices = torch.cuda.device_count()
    return {"LOCAL_RANK": str(rank % devices)} if devices else {}  # one rank per GPU, numbered node by node
