"""Run `rankscope top`: one thread polls the collector, the main thread reads keys and draws."""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from rankscope.collector.client import Credentials
from rankscope.collector.reports.terminal_colors import Colors, choose_colors
from rankscope.collector.top.board import Board, press
from rankscope.collector.top.drawing import WIDTH_MIN, draw
from rankscope.collector.top.keyboard import raw_terminal, read_keys
from rankscope.collector.top.screen_lines import Line, cut, render
from rankscope.collector.top.snapshot_fetch import FetchedRun, StepTrend, fetch_past_steps, fetch_run_view
from rankscope.measure.errors import UnavailableError

KEY_WAIT_S: Final = 0.1
"""Largest delay of a new view while no key is pressed."""
PAUSE_FACTOR: Final = 4
"""Smallest pause between requests, in durations of the last request: limits the load of large runs on the collector."""
PAST_POINTS: Final = 60
"""Points of a run's step time before the first poll."""
SCREEN, NO_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Sequences (xterm's ctlseqs) that switch to a screen of its own without a cursor, and back."""
LINES_BESIDE_RANKS_MAX: Final = 200
"""More lines than there are besides the ranks."""


class Poller:
    """Poll the collector in a thread. `latest` is the last view."""

    def __init__(self, url: str, credentials: Credentials, run: str, interval_s: float) -> None:
        self._url, self._credentials, self._interval_s = url, credentials, interval_s
        self._wanted = run
        self._wake = threading.Event()
        self._is_stopped = False
        self._trend = StepTrend()
        self.latest = FetchedRun(wall_s=time.time())
        self._thread = threading.Thread(target=self._run, name="rankscope-top", daemon=True)

    def start(self) -> None:
        """Fetch the first view, then poll in the thread. Raises UnavailableError if the first request fails."""
        self.latest = self._fetch()
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

    def _fetch(self) -> FetchedRun:
        """Return the run that is wanted, with its step time so far. Raises UnavailableError."""
        view = fetch_run_view(self._url, self._credentials, self._wanted, time.time())
        if view.run is None:
            return view
        run_id = view.run.run_id
        if not self._trend.is_of(run_id):
            self._trend.begin(run_id, fetch_past_steps(self._url, self._credentials, run_id, PAST_POINTS))
        return msgspec.structs.replace(view, trend=self._trend.add(view.ranks))

    def _run(self) -> None:
        request_s = 0.0
        while not self._is_stopped:
            self._wake.wait(max(self._interval_s, PAUSE_FACTOR * request_s))
            self._wake.clear()
            begin_s = time.monotonic()
            try:
                self.latest = self._fetch()
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


@contextlib.contextmanager
def full_screen() -> Iterator[None]:
    """Show a screen of its own on the terminal; what was there before comes back when the block ends."""
    sys.stdout.write(SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(NO_SCREEN)
        sys.stdout.flush()


def show(lines: Sequence[Line], height: int, colors: Colors) -> None:
    """Draw the screen. Each line is erased before it is written, since what is written into the last column would be
    erased after it.
    """
    rows = [f"\x1b[{row};1H\x1b[2K{text}" for row, text in enumerate(render(lines[:height], colors), start=1)]
    sys.stdout.write("".join(rows) + "\x1b[J" * (len(rows) < height))
    sys.stdout.flush()


def watch(poller: Poller, board: Board) -> None:
    """Draw until `q`; the terminal may be resized. Raises KeyboardInterrupt after Ctrl-C."""
    colors = choose_colors(sys.stdout, os.environ)
    with deferred_interrupts() as interrupted, raw_terminal() as keyboard, full_screen():
        shown: object = None
        while not board.is_over:
            if interrupted.is_set():
                raise KeyboardInterrupt
            latest, size = poller.latest, os.get_terminal_size(sys.stdout.fileno())
            state = (board, id(latest), size)
            if state != shown:
                lines, board = draw(board, latest, size.columns, size.lines)
                show([cut(line, size.columns) for line in lines], size.lines, colors)
                shown = (board, id(latest), size)
            try:
                for key in read_keys(keyboard, KEY_WAIT_S):
                    board = press(board, key, latest)
            except EOFError:
                return
            poller.select_run(board.run)


def print_once(view: FetchedRun, board: Board) -> None:
    """Print a view with every rank to stdout."""
    width = max(shutil.get_terminal_size().columns, WIDTH_MIN)
    lines, _ = draw(board, view, width, LINES_BESIDE_RANKS_MAX + board.count_rows(view.ranks))
    shown = [line for line in lines if line]  # without those that fill a screen
    text = "\n".join(render(shown, choose_colors(sys.stdout, os.environ)))
    sys.stdout.write(f"{text}\n")
