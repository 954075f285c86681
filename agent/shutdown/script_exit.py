"""Finds out how the script ends: from SystemExit, an uncaught exception, or the finalizers of multiprocessing.

An uncaught exception is what the interpreter keeps at its end. No sys.excepthook takes the place of its own: whether
that is there decides what a console (`code.interact`) or a library shows, and where.

A process started by multiprocessing, as with torch.multiprocessing.spawn, keeps none, and a forked one calls no atexit;
both run multiprocessing's finalizers while the final exception is being raised.
"""

import contextlib
import multiprocessing
import multiprocessing.util
import os
import sys
from collections.abc import Callable

from rankscope.agent.captures.stacks import find_raised_line
from rankscope.agent.guard import describe, explain, is_of_script, log_line
from rankscope.agent.reporting.builder import ScriptEnd

DETAIL_LENGTH_MAX = 512
TRIES = 2
"""Tries to record an error: a signal handler of the script may raise amid the first."""
BEFORE_CHILDREN = 100
"""Priority of a finalizer that runs before those without priority, and before child processes are joined."""


class ScriptExit:
    """The end of the script in this process, as far as it is known: `end`, by default that it has finished."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.end = ScriptEnd("finished")

    def note_exit(self, code: object) -> None:
        """Record that the script ended by SystemExit; None and 0 mean success, text means 1, as for the interpreter."""
        status = code if isinstance(code, int) else int(code is not None)
        self.end = ScriptEnd("failed" if status else "finished", "SystemExit" if status else "", status)

    def note_error(self, error: BaseException) -> None:
        """Record that the script ended by an uncaught exception. Do nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        for _ in range(TRIES):
            try:
                self.end = ScriptEnd(reason, describe(error)[:DETAIL_LENGTH_MAX], 1)
                self.end = ScriptEnd(reason, self.end.detail, 1, find_raised_line(error))
            except BaseException as raised:  # noqa: BLE001 - the script has ended, by its own error
                if not is_of_script(raised):
                    log_line(f"the line of the error is not known ({explain('script_exit', raised)})")
                    break
            else:
                break

    def note_uncaught(self) -> None:
        """Record an uncaught exception, at the end of the process. The interpreter keeps what it has passed to any
        sys.excepthook.
        """
        error = getattr(sys, "last_value", None)
        if self.end.reason == "finished" and isinstance(error, BaseException) and _has_ended_main(error):
            self.note_error(error)

    def keep_status(self) -> None:
        """Let the process still end as by Ctrl-C where that has ended the script, after all else that is done at its
        end: CPython forgets it when a text is executed, as for each named tuple of a module that is imported then.
        """
        if self.end.reason == "interrupted" and type(getattr(sys, "last_value", None)) is KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102 - what makes CPython note it


def _has_ended_main(error: BaseException) -> bool:
    """Return whether an exception has left the main module, and so ended the script: an interactive interpreter keeps
    those of its inputs as well, and goes on.
    """
    main, trace = sys.modules.get("__main__"), error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == "runpy":  # python -m
        trace = trace.tb_next
    if main is None or trace is None or hasattr(sys, "ps1"):
        return False
    return trace.tb_frame.f_globals is vars(main) and trace.tb_frame.f_code.co_name == "<module>"


def stop_with_process(script_exit: ScriptExit, stop: Callable[[], None]) -> None:
    """Call `stop` when this process ends, if multiprocessing has started it, with the end recorded before."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _stop, args=(script_exit, stop), exitpriority=BEFORE_CHILDREN)


def _stop(script_exit: ScriptExit, stop: Callable[[], None]) -> None:
    error = sys.exc_info()[1]
    try:
        if isinstance(error, SystemExit):
            # torch's spawn passes the exception to the parent and exits with 1.
            if error.code and error.__context__ is not None:
                script_exit.note_error(error.__context__)
            else:
                script_exit.note_exit(error.code)
        elif error is not None:
            script_exit.note_error(error)
    finally:  # also where a signal handler of the script raises
        stop()
