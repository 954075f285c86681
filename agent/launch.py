"""How the agent gets into a training process: `-m rankscope.agent SCRIPT`, or `RANKSCOPE=1` and torch's own autoload.

In both ways the session starts at the end of the script's `import torch`, never before: a script that sets the
environment first (devices, threads) finds it obeyed, by torch and by numpy, which reads it when it is imported: hence
the imports inside functions. Where the environment says no RANK by then, it starts when init_process_group says it. And
where rankscope is installed torch imports this file, whether the agent is asked for or not. The script runs in this
very process as `__main__`.
"""

import contextlib
import gc
import importlib.machinery
import io
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rankscope.agent.guard import explain, log_line
from rankscope.measure.errors import RankscopeError

if TYPE_CHECKING:
    from rankscope.agent.config import LaunchConfig
    from rankscope.agent.session import Session
    from rankscope.measure.identity import RankIdentity

USAGE = """usage: torchrun [...] -m rankscope.agent [--config FILE] [--collector tcp://HOST:PORT] [--run NAME]
                                           [--strict] SCRIPT.py | -m MODULE  [arguments of the script]

Measures each rank of a torch.distributed job while it trains. Everything after the script belongs to the script.
Without --collector (or RANKSCOPE_COLLECTOR) rank 0 starts a collector beside itself and says where its /metrics are.
A mistake in the settings or keys is reported once on each node and training continues. With --strict such a mistake
ends the process with exit status 2."""

OPTIONS = ("--config", "--collector", "--run")
"""Each takes a value."""

PID_VARIABLE = "RANKSCOPE_PID"
"""Set to the process that is measured, so that its children (data loader workers, tools) are not."""

AUTOLOAD_SINCE = (2, 5)
"""The first torch that calls entry points at the end of its import."""

session: "Session | None" = None
_requested = False
_given: dict[str, str] = {}
_settled: "LaunchConfig | None" = None
_other_ranks_said: set[tuple[str | None, ...]] = set()


def main(directory: str | None) -> None:
    """`python -m rankscope.agent`: run the script with the agent in it, and end as the script ends.

    `directory` is the working directory as `python -m` has searched it first; None where it was told not to.
    """
    before = set(sys.modules)
    from rankscope.agent.import_path import forget_shadowed, standard_library_first  # noqa: PLC0415

    script, is_module, arguments = _parse(sys.argv[1:])
    with standard_library_first():
        _begin()
    if directory is not None:  # as Python searches for its script or module
        sys.path.insert(0, directory if is_module else os.path.dirname(os.path.realpath(script)))
    forget_shadowed(before)
    sys.argv = [script, *arguments]
    try:
        if is_module:
            import runpy  # noqa: PLC0415 - Python itself has imported it for `-m`

            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            _run_script(script)
    except SystemExit as error:
        if session is not None:
            session.note_exit(error.code)
        raise
    except BaseException as error:
        # sys.excepthook would come too, unless the script has put its own in its place.
        if session is not None:
            session.note_error(error)
        raise


def _begin() -> None:
    """Start now, or see to it that `import torch` does. Nothing that fails here costs the script its run."""
    global _requested  # noqa: PLW0603 - one process has one launch
    try:
        if not _settle(os.environ).is_usable:
            return
        _requested = True
        if not _autoload_will_come():
            start()
    except Exception as error:  # noqa: BLE001
        log_line(f"not started ({explain('start', error)}); training goes on without it")


def _settle(environment: Mapping[str, str]) -> "LaunchConfig":
    """Read the settings, once, and say what is wrong with them. With `strict` that ends the process."""
    global _settled  # noqa: PLW0603
    if _settled is None:
        from rankscope.agent.collector_address import check_launch_config  # noqa: PLC0415
        from rankscope.agent.once_per_node import log_once_per_node  # noqa: PLC0415

        _settled = check_launch_config(os.environ, _given)
        is_strict = _settled.config.strict
        for text in _settled.mistakes if is_strict else _settled.notes:
            log_once_per_node(text, environment)
        if is_strict and _settled.mistakes:
            raise SystemExit(2)
    return _settled


def autoload() -> None:
    """Called by torch at the end of `import torch`. An exception from here would make that import fail: none leaves."""
    try:
        if _requested:
            start()
        elif os.environ.get("RANKSCOPE", "") not in ("", "0"):
            start(alone=False)
    except Exception as error:  # noqa: BLE001
        log_line(f"not started ({explain('start', error)}); training goes on without it")


def start(*, alone: bool = True) -> bool:
    """Start the session of this process, now or when it is known which rank it is. Whether it runs already.

    Nobody needs to have said a rank for a process that trains by itself: it is one of one, unless `alone` is False.
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
        )
    if is_in_group():
        return start_session(describe_group(os.environ))
    is_started = alone and not has_peer_processes(os.environ) and start_session()
    watch_for_group(start_session)
    return is_started


def _belongs_to_parent() -> bool:
    return os.environ.get(PID_VARIABLE, "") not in ("", str(os.getpid()))


def start_session(launcher: Mapping[str, str] | None = None) -> bool:
    """Start the session of this process unless it runs already or belongs to a parent process; never raises.

    `launcher` has variables of torchrun, for a rank that another launcher may have started, even as a child of the
    first rank, and goes before what the environment says.
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
        with standard_library_first(), _without_collections():
            settled = _settle(environment)
            if not settled.is_usable:
                return False
            from rankscope.agent.session import Session  # noqa: PLC0415
            from rankscope.agent.shutdown.spawn_exit import stop_with_process  # noqa: PLC0415

        session = Session.start(settled.config, environment)
        if session is not None:
            stop_with_process(session)
    except RankscopeError as error:
        log_once_per_node(f"not started: {error} Training goes on without it.", environment)
    except Exception as error:  # noqa: BLE001 - our bug must not become the user's
        log_once_per_node(f"not started ({explain('start', error)}); training goes on without it", environment)
    return session is not None and session.is_running


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Leaves the garbage alone. With torch imported there are so many objects that a full collection takes 0.1 s, and
    what our imports make would set one off: twice what they take themselves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compare(identity: "RankIdentity", launcher: Mapping[str, str]) -> None:
    """Say so when the agent was started for another job than the framework has made of it since."""
    here, there = (str(identity.rank), str(identity.world_size)), (launcher.get("RANK"), launcher.get("WORLD_SIZE"))
    if here != there and there not in _other_ranks_said:
        _other_ranks_said.add(there)  # the group and a framework's callback may both tell
        log_line(
            f"this process is measured as rank {here[0]} of {here[1]}, but it is rank {there[0]} of {there[1]}, as it "
            "says only now. Leave -m rankscope.agent out of the launch line and set RANKSCOPE=1: then it is waited for."
        )


def _parse(arguments: Sequence[str]) -> tuple[str, bool, list[str]]:
    """The script or module, which of the two it is, and its own arguments. Our options come before it."""
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


def _autoload_will_come() -> bool:
    """Whether `import torch` will call us by itself; the user may have switched that off."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0" or _read_torch_release() < AUTOLOAD_SINCE:
        return False
    # 0.1 s that only a launch of ours has to pay, and torch then has not; all the entry points would take 15 ms more.
    from importlib.metadata import PackageNotFoundError, distribution, entry_points  # noqa: PLC0415

    try:
        entries = list(distribution("rankscope").entry_points)
    except PackageNotFoundError:  # packed under a name of somebody's own
        entries = list(entry_points(group="torch.backends"))
    return any(entry.name == "rankscope" and entry.group == "torch.backends" for entry in entries)


def _read_torch_release() -> tuple[int, ...]:
    """The major and minor number of the torch that the script will import, without importing it. One that does not say
    so is taken for one of today.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError, ValueError):
        found = importlib.machinery.PathFinder.find_spec("torch")
        with open(os.path.join(os.path.dirname(found.origin), "version.py"), encoding="utf-8") as file:  # type: ignore[union-attr, arg-type]
            stated = next((line for line in file if line.startswith("__version__")), "")
        return tuple(int(number) for number in stated.partition("=")[2].strip(" '\"\n").split(".")[:2])
    return AUTOLOAD_SINCE


def _run_script(path: str) -> None:
    """Run a file as `__main__`, as `python FILE` does: in a module that stays until the process ends, so that pickles,
    threads and exit handlers of the script find what they were made from.
    """
    absolute = os.path.join(os.getcwd(), path.removeprefix("./"))
    try:
        with io.open_code(absolute) as source:
            code = compile(source.read(), absolute, "exec", dont_inherit=True)
    except OSError as error:
        log_line(f"cannot open the script {path!r}: {error.strerror}")
        raise SystemExit(2) from None
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", absolute)
    module.__dict__.update(__file__=absolute, __cached__=None, __loader__=loader, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102 - running the user's script is what this file is for
