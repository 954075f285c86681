"""Run `rankscope top`: one thread polls the collector, the main thread reads keys and draws."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from rich.console import Console
from rich.live import Live

from rankscope.collector.client import Credentials
from rankscope.collector.top.board import Board, press
from rankscope.collector.top.drawing import WIDTH_MIN, draw
from rankscope.collector.top.keyboard import raw_terminal, read_keys
from rankscope.collector.top.snapshot_fetch import RunView, fetch_run_view
from rankscope.measure.errors import UnavailableError

KEY_WAIT_S: Final = 0.1
"""Largest delay of a new view while no key is pressed."""
PAUSE_FACTOR: Final = 4
"""Smallest pause between requests, in durations of the last request: limits the load of large runs on the collector."""
PIPE_HEIGHT: Final = 10_000
"""Height of the screen for printing once: more lines than there are besides the ranks."""


class Poller:
    """Poll the collector in a thread. `latest` is the last view."""

    def __init__(self, url: str, credentials: Credentials, run: str, interval_s: float) -> None:
        self._url, self._credentials, self._interval_s = url, credentials, interval_s
        self._wanted = run
        self._wake = threading.Event()
        self._is_stopped = False
        self.latest = RunView(wall_s=time.time())
        self._thread = threading.Thread(target=self._run, name="rankscope-top", daemon=True)

    def start(self) -> None:
        """Fetch the first view, then poll in the thread. Raises UnavailableError if the first request fails."""
        self.latest = fetch_run_view(self._url, self._credentials, self._wanted, time.time())
        self._thread.start()

    def select_run(self, run: str) -> None:
        """Poll this run from now on, beginning at once."""
        if run != self._wanted:
            self._wanted = run
            self._wake.set()

    def stop(self) -> None:
        """Stop polling, without waiting for a request in progress."""
        self._is_stopped = True
        self._wake.set()

    def _run(self) -> None:
        request_s = 0.0
        while not self._is_stopped:
            self._wake.wait(max(self._interval_s, PAUSE_FACTOR * request_s))
            self._wake.clear()
            begin_s = time.monotonic()
            try:
                self.latest = fetch_run_view(self._url, self._credentials, self._wanted, time.time())
            except UnavailableError as error:
                self.latest = msgspec.structs.replace(self.latest, problem=str(error))
            request_s = time.monotonic() - begin_s


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets instead of raising KeyboardInterrupt, which is lost inside a callback such as one
    of the garbage collector. For the main thread.
    """
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def watch(poller: Poller, board: Board) -> None:
    """Draw until `q`; the terminal may be resized. Raises KeyboardInterrupt after Ctrl-C."""
    console = Console()
    with (
        deferred_interrupts() as interrupted,
        raw_terminal() as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        shown: object = None
        while not board.is_over:
            if interrupted.is_set():
                raise KeyboardInterrupt
            latest = poller.latest
            state = (board, id(latest), console.size)
            if state != shown:
                screen, board = draw(board, latest, console.width, console.height)
                live.update(screen, refresh=True)
                shown = (board, id(latest), console.size)
            try:
                for key in read_keys(keyboard, KEY_WAIT_S):
                    board = press(board, key, latest)
            except EOFError:
                return
            poller.select_run(board.run)


def print_once(view: RunView, board: Board) -> None:
    """Print a view with every rank to stdout."""
    console = Console(file=sys.stdout)
    width = max(console.width, WIDTH_MIN)
    _, fitted = draw(board, view, width, PIPE_HEIGHT)
    lines_beside_ranks = PIPE_HEIGHT - fitted.rows
    screen, _ = draw(board, view, width, lines_beside_ranks + len(view.ranks))
    console.print(screen)
