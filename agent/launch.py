"""Starts the agent in a training process: `-m rankscope.agent SCRIPT`, or `RANKSCOPE=1` and torch's autoload.

Either way the session starts at the end of the script's `import torch`, so that environment variables set by the script
before (devices, threads) take effect; hence the imports inside functions. If RANK is not set by then, it starts when
init_process_group returns. torch imports this file wherever rankscope is installed, even if the agent is not wanted.
The script runs in this process as `__main__`.
"""

import builtins
import contextlib
import gc
import importlib.machinery
import io
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rankscope.agent.green_threads import find_patched
from rankscope.agent.guard import explain, is_of_script, log_line
from rankscope.measure.errors import RankscopeError, UnavailableError

if TYPE_CHECKING:
    from rankscope.agent.config import LaunchConfig
    from rankscope.agent.session import Session
    from rankscope.measure.identity import RankIdentity

    ExceptHook = Callable[[type[BaseException], BaseException, types.TracebackType | None], object]

USAGE = """usage: torchrun [...] -m rankscope.agent [--config FILE] [--collector tcp://HOST:PORT] [--run NAME]
                                           [--strict] SCRIPT | -m MODULE  [arguments of the script]

Measures each rank of a torch.distributed training. SCRIPT is what `python SCRIPT` runs: a file, a zipapp (pex, shiv),
or a folder with a __main__.py. Everything after the script belongs to the script.
Without --collector (or RANKSCOPE_COLLECTOR) rank 0 starts a collector and prints the URL of its /metrics.
A mistake in the settings or keys is reported once on each node and training continues. With --strict such a mistake
ends the process with exit status 2."""

OPTIONS = ("--config", "--collector", "--run")
"""Options with a value."""

PID_VARIABLE = "RANKSCOPE_PID"
"""Process id of the measured process, so that its children (data loader workers, tools) are not measured."""

WORKER_PAGE_VARIABLE = "RANKSCOPE_WORKER_PAGE"
"""As in `captures/worker_page.py`, which is imported in workers of a rank only."""

EARLY_FLOPS_MAX = 8
"""Declarations of FLOPs that are kept for a session that has not started: one is usual, mistakes among them are logged
when it starts.
"""

AUTOLOAD_SINCE = (2, 5)
"""The first torch that calls entry points at the end of its import."""

session: "Session | None" = None
_requested = False
_given: dict[str, str] = {}
_launch_config: "LaunchConfig | None" = None
_early_flops: list[tuple[object, object, object]] = []
"""Declarations of FLOPs before the session has started, at most EARLY_FLOPS_MAX."""
_mismatches_logged: set[tuple[str | None, ...]] = set()


def main(directory: str | None) -> None:
    """Run the script of `python -m rankscope.agent` with the agent in it, and exit as the script does.

    `directory` is the first entry of `sys.path` under `python -m`: the working directory, empty where that has been
    removed; None in safe-path mode.
    """
    before = set(sys.modules)
    from rankscope.agent.import_path import forget_shadowed, standard_library_first  # noqa: PLC0415

    script, is_module, arguments = _parse(sys.argv[1:])
    with standard_library_first():
        _begin()
    archive = "" if is_module else _find_archive(script)
    if archive:
        sys.path.insert(0, archive)
    elif is_module and directory:
        sys.path.insert(0, directory)
    elif directory is not None and not is_module:
        with contextlib.suppress(OSError):  # it cannot be opened either
            sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    forget_shadowed(before)
    sys.argv = ["-m" if is_module else script, *arguments]
    sys.excepthook = _leave_out_launcher(sys.excepthook)
    try:
        if is_module:
            _run_module(script, alter_argv=True)
        elif archive:
            _run_module("__main__", alter_argv=False)
        else:
            _run_script(script)
    except SystemExit as error:
        if session is not None:
            session.script_exit.note_exit(error.code)
        raise
    except BaseException as error:
        # The script may have replaced sys.excepthook.
        if session is not None:
            session.script_exit.note_error(error)
        raise


def _begin() -> None:
    """Start now, or leave it to the autoload of `import torch`. Never raise."""
    global _requested  # noqa: PLW0603 - one process has one launch
    try:
        if not _read_settings(os.environ).is_usable:
            return
        _requested = True
        if not _is_autoloaded():
            start()
    except Exception as error:  # noqa: BLE001
        log_line(f"not started ({explain('start', error)}); training continues without it")


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
    from rankscope.agent.once_per_node import log_once_per_session  # noqa: PLC0415

    if session is None and not _belongs_to_parent():
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
            from rankscope.agent.session import Session  # noqa: PLC0415
            from rankscope.agent.shutdown.script_exit import stop_with_process  # noqa: PLC0415

            if launch_config.config.enabled:
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


def _parse(arguments: Sequence[str]) -> tuple[str, bool, list[str]]:
    """Return the script or module, whether it is a module, and its arguments. Options of the agent come before it."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("--help", "-h"):
            print(USAGE)
            raise SystemExit(0)
        name, has_value, value = word.partition("=")
        if name in OPTIONS and (has_value or rest):
            _given[name[2:]] = value if has_value else rest.pop(0)
        elif word == "--strict":
            _given["strict"] = "1"
        elif word == "-m" and rest:
            return rest.pop(0), True, rest
        elif word.startswith("-"):
            log_line(_describe_wrong_option(name))
            break
        else:
            return word, False, rest
    print(USAGE, file=sys.stderr)
    raise SystemExit(2)


def _describe_wrong_option(name: str) -> str:
    import difflib  # noqa: PLC0415 - only a mistake needs it

    if name in OPTIONS:
        return f"{name} needs a value, and after it the script: {name} VALUE SCRIPT.py"
    known = (*OPTIONS, "--strict", "-m")
    if name in known:
        return "--strict takes no value." if name == "--strict" else "-m needs the name of a module after it."
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    return f"{name} is not an option of rankscope.agent. {meant}Options of the script belong after the script."


def _is_autoloaded() -> bool:
    """Return whether `import torch` will call `autoload`, which the user may have switched off."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0" or _read_torch_release() < AUTOLOAD_SINCE:
        return False
    # The import takes 0.1 s, which torch then saves. Reading all entry points would take 15 ms more.
    from importlib.metadata import PackageNotFoundError, distribution, entry_points  # noqa: PLC0415

    try:
        entries = list(distribution("rankscope").entry_points)
    except PackageNotFoundError:  # packaged under another name
        entries = list(entry_points(group="torch.backends"))
    return any(entry.name == "rankscope" and entry.group == "torch.backends" for entry in entries)


def _read_torch_release() -> tuple[int, ...]:
    """Return major and minor number of the torch to be imported, without importing it; AUTOLOAD_SINCE if unreadable."""
    with contextlib.suppress(OSError, AttributeError, TypeError, ValueError):
        found = importlib.machinery.PathFinder.find_spec("torch")
        with open(os.path.join(os.path.dirname(found.origin), "version.py"), encoding="utf-8") as file:  # type: ignore[union-attr, arg-type]
            stated = next((line for line in file if line.startswith("__version__")), "")
        return tuple(int(number) for number in stated.partition("=")[2].strip(" '\"\n").split(".")[:2])
    return AUTOLOAD_SINCE


def _find_archive(path: str) -> str:
    """Return the absolute path of a folder or zip file, whose `__main__` is what `python PATH` runs; empty for a file
    of code.
    """
    import pkgutil  # noqa: PLC0415 - runpy has imported it

    absolute = _make_absolute(path)
    return "" if pkgutil.get_importer(absolute) is None else absolute


def _make_absolute(path: str) -> str:
    """Return a path as the interpreter makes it absolute; as it is where the working directory has been removed."""
    try:
        return os.getcwd() if path in {"", "."} else os.path.join(os.getcwd(), path)
    except OSError:
        return path


def _make_main() -> types.ModuleType:
    """Put a new `__main__` into `sys.modules`, as bare as the interpreter's own, and return it.

    It stays there, so that pickles, threads and exit handlers of the script keep working.
    """
    is_annotated = "__annotations__" in vars(sys.modules["__main__"])  # until Python 3.13 the interpreter sets it
    module = types.ModuleType("__main__")
    module.__dict__.update({"__builtins__": builtins, **({"__annotations__": {}} if is_annotated else {})})
    sys.modules["__main__"] = module
    return module


def _run_module(name: str, *, alter_argv: bool) -> None:
    """Run a module, or the `__main__` of the first folder of `sys.path`, as the interpreter itself does.

    runpy.run_module would take the module out of `sys.modules` at its end, before exit handlers and other threads.
    """
    import runpy  # noqa: PLC0415 - Python itself has imported it for `-m`

    _make_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]  # noqa: SLF001 - what `python -m` calls


def _run_script(path: str) -> None:
    """Run a file of code, compiled or not, as `python FILE` does."""
    import pkgutil  # noqa: PLC0415 - runpy has imported it

    absolute = _make_absolute(path)
    try:
        with io.open_code(absolute) as file:
            text = file.read()  # once: it may be a pipe, `<(...)` or /dev/stdin
        code = pkgutil.read_code(io.BytesIO(text))  # None unless it is compiled
        is_source = code is None
        if code is None:
            code = compile(text, absolute, "exec", dont_inherit=True)
    except OSError as error:
        log_line(f"cannot open the script {path!r}: {error.strerror}")
        raise SystemExit(2) from None
    loader = importlib.machinery.SourceFileLoader if is_source else importlib.machinery.SourcelessFileLoader
    module = _make_main()
    module.__dict__.update(__file__=absolute, __cached__=None, __loader__=loader("__main__", absolute))
    exec(code, module.__dict__)  # noqa: S102 - running the user's script is what this file is for


def _leave_out_launcher(show: "ExceptHook") -> "ExceptHook":
    """Return a sys.excepthook that shows an uncaught error without the frames that led to the script."""

    def show_script(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        own = [one for one in _walk(trace) if one.tb_frame.f_code.co_filename == __file__]
        if own:
            last = own[0]
            while last.tb_next is not None and last.tb_next.tb_frame.f_code.co_filename == __file__:
                last = last.tb_next
            trace = last.tb_next
        show(kind, error.with_traceback(trace), trace)

    return show_script


def _walk(trace: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
