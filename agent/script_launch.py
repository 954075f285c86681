"""Runs the script of `python -m rankscope.agent SCRIPT` with the agent in it, in this process and as its `__main__`."""

import builtins
import contextlib
import importlib.machinery
import io
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rankscope.agent import launch
from rankscope.agent.guard import explain, log_line

if TYPE_CHECKING:
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

AUTOLOAD_SINCE = (2, 5)
"""The first torch that calls entry points at the end of its import."""


def main(directory: str | None) -> None:
    """Run the script of `python -m rankscope.agent` with the agent in it, and exit as the script does.

    `directory` is the first entry of `sys.path` under `python -m`: the working directory, empty where that has been
    removed; None in safe-path mode.
    """
    before = set(sys.modules)
    from rankscope.agent.import_path import forget_shadowed, standard_library_first  # noqa: PLC0415

    given, script, is_module, arguments = _parse(sys.argv[1:])
    with standard_library_first():
        _begin(given)
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
    try:
        if is_module:
            _run_module(script, alter_argv=True)
        elif archive:
            _run_module("__main__", alter_argv=False)
        else:
            _run_script(script)
    except SystemExit as error:
        if launch.session is not None:
            launch.session.script_exit.note_exit(error.code)
        raise
    except BaseException as error:
        if launch.session is not None:
            launch.session.script_exit.note_error(error)
        sys.excepthook = _leave_out_launcher(sys.excepthook)  # not before: scripts ask whether it is the interpreter's
        raise


def _begin(given: Mapping[str, str]) -> None:
    """Start now, or leave it to the autoload of `import torch`. Never raise."""
    try:
        if launch.request(given) and not _is_autoloaded():
            launch.start()
    except Exception as error:  # noqa: BLE001
        log_line(f"not started ({explain('start', error)}); training continues without it")


def _parse(arguments: Sequence[str]) -> tuple[dict[str, str], str, bool, list[str]]:
    """Return the settings given as options of the agent, which come before the script; the script or module, whether it
    is a module, and its arguments.
    """
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("--help", "-h"):
            print(USAGE)
            raise SystemExit(0)
        name, has_value, value = word.partition("=")
        if name in OPTIONS and (has_value or rest):
            given[name[2:]] = value if has_value else rest.pop(0)
        elif word == "--strict":
            given["strict"] = "1"
        elif word == "-m" and rest:
            return given, rest.pop(0), True, rest
        elif word.startswith("-"):
            log_line(_describe_wrong_option(name))
            break
        else:
            return given, word, False, rest
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
