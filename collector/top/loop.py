"""The life of `rankscope top`: one thread asks the collector, the other reads keys and draws."""

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
from rankscope.collector.top.picture import Picture, ask_for_picture
from rankscope.measure.errors import UnavailableError

KEY_WAIT_S: Final = 0.1
"""How late a new picture is drawn when no key is pressed; nobody sees a tenth of a second."""
REST_SHARE: Final = 4
"""So many times as long as an answer took nothing is asked: whoever watches 16,384 ranks must not keep the collector
busy with it."""
PIPE_HEIGHT: Final = 10_000
"""More lines than all that stand beside the ranks in one picture that is not for a terminal."""


class Asking:
    """Asks the collector again and again, in a thread of its own. `latest` is what it said last."""

    def __init__(self, url: str, credentials: Credentials, run: str, interval_s: float) -> None:
        self._url, self._credentials, self._interval_s = url, credentials, interval_s
        self._wanted = run
        self._wake = threading.Event()
        self._is_over = False
        self.latest = Picture(wall_s=time.time())
        self._thread = threading.Thread(target=self._run, name="rankscope-top", daemon=True)

    def start(self) -> None:
        """Ask once, so that there is something to draw, and go on asking. Raises UnavailableError if nobody answers."""
        self.latest = ask_for_picture(self._url, self._credentials, self._wanted, time.time())
        self._thread.start()

    def want(self, run: str) -> None:
        """Ask for another run from now on, at once."""
        if run != self._wanted:
            self._wanted = run
            self._wake.set()

    def stop(self) -> None:
        """Ask no more. What is being asked is not waited for."""
        self._is_over = True
        self._wake.set()

    def _run(self) -> None:
        took_s = 0.0
        while not self._is_over:
            self._wake.wait(max(self._interval_s, REST_SHARE * took_s))
            self._wake.clear()
            begin_s = time.monotonic()
            try:
                self.latest = ask_for_picture(self._url, self._credentials, self._wanted, time.time())
            except UnavailableError as error:
                self.latest = msgspec.structs.replace(self.latest, problem=str(error))
            took_s = time.monotonic() - begin_s


@contextlib.contextmanager
def noting_interrupts() -> Iterator[threading.Event]:
    """Within it Ctrl-C is noted in what this gives, and raises nothing: Python's own exception is lost where it comes
    amid a callback, of the garbage collector for one. For the main thread.
    """
    noted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: noted.set())
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def watch(asking: Asking, board: Board) -> None:
    """Draw until the person has seen enough, in a terminal whose size may change. Raises KeyboardInterrupt after
    Ctrl-C.
    """
    console = Console()
    with (
        noting_interrupts() as interrupted,
        raw_terminal() as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        shown: object = None
        while not board.is_over:
            if interrupted.is_set():
                raise KeyboardInterrupt
            latest = asking.latest
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
            asking.want(board.run)


def print_once(picture: Picture, board: Board) -> None:
    """One picture, with every rank, to wherever stdout goes."""
    console = Console(file=sys.stdout)
    width = max(console.width, WIDTH_MIN)
    _, fitted = draw(board, picture, width, PIPE_HEIGHT)
    lines_beside_ranks = PIPE_HEIGHT - fitted.rows
    screen, _ = draw(board, picture, width, lines_beside_ranks + len(picture.ranks))
    console.print(screen)
