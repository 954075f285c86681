"""Starts the agent in a training process: `-m rankscope.agent SCRIPT` (script_launch.py), or `RANKSCOPE=1` and torch's
autoload.

Either way the session starts at the end of the script's `import torch`, so that environment variables set by the script
before (devices, threads) take effect; hence the imports inside functions. If RANK is not set by then, it starts when
init_process_group returns. torch imports this file wherever rankscope is installed, even if the agent is not wanted.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rankscope.agent.green_threads import find_patched
from rankscope.agent.guard import explain, is_of_script, log_line
from rankscope.measure.errors import RankscopeError, UnavailableError

if TYPE_CHECKING:
    from rankscope.agent.config import LaunchConfig
    from rankscope.agent.session import Session
    from rankscope.measure.identity import RankIdentity

PID_VARIABLE = "RANKSCOPE_PID"
"""Process id of the measured process, so that its children (data loader workers, tools) are not measured."""

WORKER_PAGE_VARIABLE = "RANKSCOPE_WORKER_PAGE"
"""As in `captures/worker_page.py`, which is imported in workers of a rank only."""

EARLY_FLOPS_MAX = 8
"""Declarations of FLOPs that are kept for a session that has not started: one is usual, mistakes among them are logged
when it starts.
"""

session: "Session | None" = None
_requested = False
_given: dict[str, str] = {}
_launch_config: "LaunchConfig | None" = None
_early_flops: list[tuple[object, object, object]] = []
"""Declarations of FLOPs before the session has started, at most EARLY_FLOPS_MAX."""
_mismatches_logged: set[tuple[str | None, ...]] = set()


def request(given: Mapping[str, str]) -> bool:
    """Ask for the agent, with these settings of the command line; return whether the settings can be used. It starts at
    the end of `import torch`, where torch calls `autoload`, else with `start`. With `strict` a mistake in them ends the
    process.
    """
    global _requested  # noqa: PLW0603 - one process has one launch
    _given.update(given)
    _requested = _read_settings(os.environ).is_usable
    return _requested


def _read_settings(environment: Mapping[str, str]) -> "LaunchConfig":
    """Read the settings once and log their mistakes. With `strict` a mistake ends the process."""
    global _launch_config  # noqa: PLW0603
    if _launch_config is None:
        from rankscope.agent.collector_address import check_launch_config  # noqa: PLC0415
        from rankscope.agent.once_per_node import log_once_per_node  # noqa: PLC0415

        _launch_config = check_launch_config(os.environ, _given)
        is_strict = _launch_config.config.strict
        for text in _launch_config.mistakes if is_strict else _launch_config.notes:
            log_once_per_node(text, environment)
        if is_strict and _launch_config.mistakes:
            raise SystemExit(2)
    return _launch_config


def autoload() -> None:
    """Start the agent if it is wanted; torch calls this at the end of `import torch`. Raise only what a signal handler
    of the script raises meanwhile.
    """
    try:
        if WORKER_PAGE_VARIABLE in os.environ and _belongs_to_parent():
            _join_rank()
        if _requested:
            start()
        elif os.environ.get("RANKSCOPE", "") not in ("", "0"):
            start(alone=False)
    except Exception as error:
        if is_of_script(error):
            raise
        log_line(f"not started ({explain('start', error)}); training continues without it")


def _join_rank() -> None:
    """Let the collector's orders of samples reach this process, if it is a worker of a rank's data loader."""
    from rankscope.agent.import_path import standard_library_first  # noqa: PLC0415

    with standard_library_first(), contextlib.suppress(OSError, ValueError):
        from rankscope.agent.captures.worker_page import join_rank  # noqa: PLC0415 - in no other process

        join_rank(os.environ, sys.orig_argv)


def start(*, alone: bool = True) -> bool:
    """Start the session of this process, now or once its rank is known. Return whether it is running.

    A process without a rank is measured as rank 0 of 1 unless `alone` is False.
    """
    if session is not None or "RANK" in os.environ or _belongs_to_parent():
        return start_session()
    from rankscope.agent.import_path import standard_library_first  # noqa: PLC0415

    with standard_library_first():
        from rankscope.agent.deferred_start import (  # noqa: PLC0415
            describe_group,
            has_peer_processes,
            is_in_group,
            watch_for_group,
            watch_for_training,
        )
    if is_in_group():
        return start_session(describe_group(os.environ))
    is_started = alone and not has_peer_processes(os.environ) and start_session()
    watch_for_group(start_session, before=_enable_timing_of_deferred)
    if not is_started:
        watch_for_training(_tell_of_blindness)
    return is_started


def _tell_of_blindness() -> None:
    """Say that a training without a rank is not watched, and how it would be; silent in children of a measured one."""
    from rankscope.agent.deferred_start import is_in_group  # noqa: PLC0415
    from rankscope.agent.once_per_node import log_once_per_session  # noqa: PLC0415

    if session is None and not _belongs_to_parent() and not is_in_group():  # in a group it has said why not
        log_once_per_session(
            "this training is not watched: RANKSCOPE=1 watches the ranks of a process group, and this process has "
            "none. Start it by `python -m rankscope.agent SCRIPT`, or by torchrun."
        )


def _enable_timing_of_deferred() -> None:
    """Let torch time collectives in a process whose rank is not known yet: its settings are read again with the rank,
    and their mistakes logged then.
    """
    from rankscope.agent.config import read_launch_config  # noqa: PLC0415
    from rankscope.agent.profiler.nccl_timing import enable_timing  # noqa: PLC0415

    found = read_launch_config(os.environ, _given)
    if found.is_usable and found.config.enabled:
        enable_timing(found.config.nccl_timing, os.environ)


def _enable_timing(choice: str, environment: Mapping[str, str]) -> None:
    """Let torch time collectives, by the setting `nccl_timing`; log it if process groups of NCCL exist already."""
    from rankscope.agent.once_per_node import log_once_per_node  # noqa: PLC0415
    from rankscope.agent.profiler.nccl_timing import describe_too_late, enable_timing  # noqa: PLC0415
    from rankscope.agent.profiler.process_groups import ProcessGroups, is_nccl  # noqa: PLC0415

    if not any(is_nccl(group.backend) for group in ProcessGroups(1).read().values()):
        enable_timing(choice, os.environ)
    elif enable_timing(choice, dict(os.environ)):
        log_once_per_node(describe_too_late(), environment)


def _belongs_to_parent() -> bool:
    return os.environ.get(PID_VARIABLE, "") not in ("", str(os.getpid()))


def _tell_not_started(error: Exception, environment: Mapping[str, str]) -> None:
    """Log that an error of ours has kept the agent from starting; raise one of a signal handler of the script."""
    if is_of_script(error):
        raise error
    from rankscope.agent.once_per_node import log_once_per_node  # noqa: PLC0415

    log_once_per_node(f"not started ({explain('start', error)}); training continues without it", environment)


def start_session(launcher: Mapping[str, str] | None = None) -> bool:
    """Start the session unless it is running or this is a child of a measured process. Never raise.

    `launcher` has torchrun's variables for a rank started by another launcher, possibly as a child of the first rank;
    it overrides the environment.
    """
    global session  # noqa: PLW0603
    if session is not None:
        if launcher is not None:
            _compare(session.identity, launcher)
        return session.is_running
    if _belongs_to_parent() and launcher is None:
        return False
    from rankscope.agent.import_path import standard_library_first  # noqa: PLC0415
    from rankscope.agent.once_per_node import log_once_per_node  # noqa: PLC0415

    environment = {**os.environ, **(launcher or {})}
    os.environ[PID_VARIABLE] = str(os.getpid())
    try:
        _refuse_patched()
        with standard_library_first(), _without_collections():
            launch_config = _read_settings(environment)
            if not launch_config.is_usable:
                return False
            from rankscope.agent.process_room import require_address_space  # noqa: PLC0415
            from rankscope.agent.session import Session  # noqa: PLC0415
            from rankscope.agent.shutdown.script_exit import stop_with_process  # noqa: PLC0415

            if launch_config.config.enabled:
                require_address_space()
                _enable_timing(launch_config.config.nccl_timing, environment)
        with standard_library_first(), _without_collections():  # it imports what the settings ask for
            session = Session.start(launch_config.config, {**os.environ, **(launcher or {})})
        if session is not None:
            stop_with_process(session.script_exit, session.stop)
            for declared in _early_flops:
                session.calls.declare_flops(*declared)
    except RankscopeError as error:
        log_once_per_node(f"not started: {error} Training continues without it.", environment)
    except Exception as error:  # noqa: BLE001 - an error of the agent must not affect training
        _tell_not_started(error, environment)
    return session is not None and session.is_running


def _refuse_patched() -> None:
    """Raise UnavailableError where gevent or eventlet has patched what the agent needs."""
    library = find_patched()
    if library:
        raise UnavailableError(
            f"{library} has patched this process (monkey patching), where a thread of the agent would keep training "
            "from running. To have it measured, train in a process without that."
        )


def declare_flops(per_step: object, per_token: object, dtype: object) -> None:
    """Declare model FLOPs to the session, or to the one that starts once the rank is known. Never raise."""
    if session is not None:
        session.calls.declare_flops(per_step, per_token, dtype)
        return
    _early_flops.append((per_step, per_token, dtype))
    del _early_flops[:-EARLY_FLOPS_MAX]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable the garbage collector. The imports would trigger a full collection, which takes 0.1 s under torch."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compare(identity: "RankIdentity", launcher: Mapping[str, str]) -> None:
    """Log a warning if the process group has another rank or size than the session was started with."""
    here, there = (str(identity.rank), str(identity.world_size)), (launcher.get("RANK"), launcher.get("WORLD_SIZE"))
    if here != there and there not in _mismatches_logged:
        _mismatches_logged.add(there)  # the group and a framework's callback may both call this
        log_line(
            f"this process is measured as rank {here[0]} of {here[1]}, but its process group made it rank {there[0]} "
            f"of {there[1]} after the agent had started. Leave -m rankscope.agent out of the launch line and set "
            "RANKSCOPE=1: then the agent starts once the rank is known."
        )
