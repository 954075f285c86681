"""`rankscope capture`: order a capture of a running training, follow it, and download its files."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rankscope.collector.captures.capture import ALL, COMPLETE, ENDED, SLOWEST, Around, Capture, CaptureFile
from rankscope.collector.client import Collector, add_control, fetch, fetch_blocks, find_controlled, post
from rankscope.collector.commands.command import add_needed_run
from rankscope.collector.private_files import make_private_folder, open_private
from rankscope.collector.publish.api.capture_routes import CAPTURES_PATH, CAPTURES_SUFFIX, CaptureOptions
from rankscope.collector.publish.routes import RUNS_PATH
from rankscope.collector.reports.capture_text import REPORT, describe_change, describe_end, describe_order
from rankscope.collector.reports.trace_cells import printable
from rankscope.measure.capture_limits import CAPTURE_STEPS_MAX
from rankscope.measure.errors import SettingError, UnavailableError

STEPS: Final = 3
AROUND: Final = "around:"
"""In front of a rank that is captured with those beside it."""
POLL_S: Final = 1.0
FAILED_POLLS_MAX: Final = 30
"""A collector that is started again goes on with its captures: so many polls in a row may fail until it does."""
POLLS_UNTIL_TOLD: Final = 3
"""Failed polls in a row until the user is told: the first may come before the order is known everywhere."""
NAME_LENGTH_MAX: Final = 200
"""Longest name of a file, bytes. Most file systems take 255, and a file has a longer name until it is whole."""
PART_SUFFIX: Final = ".part"
OPTIONS: Final = {
    "shapes": "record the shapes of arguments, which makes it more expensive",
    "stacks": "record Python stacks, which makes it more expensive",
    "memory": "record allocations, which makes it more expensive",
    "modules": "mark the forwards of modules, for a tree of them, forward and backward",
}


class OrderCapture:
    """Order a capture, and with --wait or -o follow it until it has ended."""

    name = "capture"
    summary = "capture a trace of the same steps of several ranks of a running training"
    example = """\
rankscope capture bert                     the slowest rank, its healthiest peer and a neighbor
rankscope capture bert --ranks 3,7 --steps 5 --wait
rankscope capture bert --ranks all --stacks -o traces"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the run, what to capture, what to wait for, and the address."""
        add_needed_run(parser)
        parser.add_argument(
            "--ranks",
            default=SLOWEST,
            help=f"rank numbers such as 3,7, or {AROUND}3 (rank 3, its healthiest peer, and a neighbor on its node), "
            f"{SLOWEST} (the same around the slowest rank) or {ALL} [{SLOWEST}]",
        )
        parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"steps to record [{STEPS}]")
        for name, text in OPTIONS.items():
            parser.add_argument(f"--{name}", action="store_true", help=text)
        parser.add_argument(
            "--force",
            action="store_true",
            help="also where it is expected to stop training for longer than capture_pause_s_max",
        )
        parser.add_argument(
            "--wait",
            action="store_true",
            help="follow it until it has ended; the exit status is 0 if it is complete, 1 if it has failed",
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            default=None,
            metavar="FOLDER",
            help="wait, and download the files into this folder, a new or an empty one",
        )
        add_control(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Order it, and return 0; when it has been waited for, 1 if it has failed. Raises SettingError, and
        UnavailableError where it is refused, or a file cannot be fetched.
        """
        order = read_order(options)
        collector = find_controlled(options)
        if options.output is not None:
            _check_folder(options.output)
        url = f"{collector.url}{CAPTURES_PATH}"
        orders = f"{collector.url}{RUNS_PATH}/{quote(options.run, safe='')}{CAPTURES_SUFFIX}"
        try:
            capture = post(orders, order, Capture, collector.credentials)
            url = f"{url}/{quote(capture.id, safe='')}"
            print(describe_order(capture), flush=True)
            if options.wait or options.output is not None:
                return _see_through(collector, url, capture, options.output)
        except KeyboardInterrupt:
            print(f"rankscope: a capture that has been ordered goes on; {url} shows it", file=sys.stderr)
            raise
        print(f"{url} shows how far it is")
        return 0


def read_order(options: argparse.Namespace) -> CaptureOptions:
    """Return the order of these options. Raises SettingError for ranks or steps that cannot be."""
    if not 1 <= options.steps <= CAPTURE_STEPS_MAX:
        raise SettingError(f"--steps is {options.steps}; it must be from 1 to {CAPTURE_STEPS_MAX}.")
    ranks: tuple[int, ...] | Around | str = options.ranks
    if options.ranks.startswith(AROUND):
        ranks = Around(_read_rank(options.ranks.removeprefix(AROUND)))
    elif options.ranks not in {SLOWEST, ALL}:
        ranks = tuple(map(_read_rank, options.ranks.split(",")))
    chosen = tuple(name for name in OPTIONS if getattr(options, name))
    return CaptureOptions(ranks=ranks, steps=options.steps, options=chosen, force=options.force)


def _read_rank(text: str) -> int:
    number = text.strip()
    if not (number.isascii() and number.isdecimal() and len(number) <= 9):  # noqa: PLR2004 - no run has 10**9 ranks
        form = f"it must be rank numbers such as 3,7, or {AROUND}3, {SLOWEST} or {ALL}"
        raise SettingError(f"--ranks has {number[:80]!r}; {form}.")
    return int(number)


def _see_through(collector: Collector, url: str, ordered: Capture, folder: Path | None) -> int:
    """Follow a capture, print how it has ended, and download its files."""
    capture = follow(lambda: fetch(url, Capture, collector.credentials), ordered)
    for line in describe_end(capture):
        print(line)
    if folder is not None:
        for file in capture.files:
            print(download(collector, url, file, folder), flush=True)
    if any(file.name == REPORT for file in capture.files):
        print(f"report: {url}/files/{REPORT}")
    return 0 if capture.state == COMPLETE else 1


def follow(read: Callable[[], Capture], before: Capture, sleep: Callable[[float], None] = time.sleep) -> Capture:
    """Return the capture when it has ended, and print each change until then. Raises UnavailableError when `read` has
    raised it FAILED_POLLS_MAX times in a row.
    """
    failed = 0
    while before.state not in ENDED:
        sleep(POLL_S)
        try:
            now = read()
        except UnavailableError as error:
            failed += 1
            if failed >= FAILED_POLLS_MAX:
                raise UnavailableError(f"{error} The capture may go on all the same.") from error
            if failed == POLLS_UNTIL_TOLD:
                print(f"rankscope: {error} It is asked again.", file=sys.stderr, flush=True)
            continue
        failed = 0
        for line in describe_change(before, now):
            print(line, flush=True)
        before = now
    return before


def _check_folder(folder: Path) -> None:
    """Make the folder. Raises SettingError for one with files: those of two captures must not be mixed."""
    try:
        make_private_folder(folder)
        is_empty = next(folder.iterdir(), None) is None
    except OSError as error:
        raise SettingError(f"-o is {str(folder)!r}, which cannot be used: {error.strerror}. Name another.") from error
    if not is_empty:
        raise SettingError(f"-o is {str(folder)!r}, which has files in it. Name a new or an empty folder.")


def download(collector: Collector, url: str, file: CaptureFile, folder: Path) -> Path:
    """Write a file of the capture at `url` into `folder`, and return its path. It is there when it is whole. Raises
    UnavailableError where it cannot be fetched or written, or its name could lead out of the folder.
    """
    if not is_plain_name(file.name):
        shown = printable(file.name[:80])
        raise UnavailableError(f"the collector at {url} lists a file '{shown}', which is no plain name: not fetched.")
    target, part = folder / file.name, folder / f"{file.name}{PART_SUFFIX}"
    source = f"{url}/files/{quote(file.name, safe='')}"
    try:
        _write_blocks(collector, source, file.size_bytes, part)
        part.rename(target)
    except OSError as error:
        raise UnavailableError(
            f"{target} cannot be written: {error.strerror}. The collector has it: {source}"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def is_plain_name(name: str) -> bool:
    r"""Return whether this is the name of a file in a folder, and of nothing else, in any system.

    >>> [is_plain_name(name) for name in ("rank-1.pt.trace.json.gz", "../x", "a/b", "a\\b", "..", ".x", "", "a\nb")]
    [True, False, False, False, False, False, False, False]
    """
    is_short = 0 < len(name.encode(errors="replace")) <= NAME_LENGTH_MAX
    return is_short and name.isprintable() and not name.startswith(".") and not any(sign in name for sign in "/\\:")


def _write_blocks(collector: Collector, source: str, size_bytes: int, part: Path) -> None:
    """Write what is at `source` into a new file. Raises UnavailableError unless it has `size_bytes` bytes."""
    written = 0
    with open_private(part, is_new=True) as file:
        for block in fetch_blocks(source, collector.credentials):
            written += len(block)
            if written > size_bytes:
                break
            file.write(block)
    if written != size_bytes:
        more_or_less = "more" if written > size_bytes else "fewer"
        raise UnavailableError(f"{source} has {more_or_less} bytes than the {size_bytes} that the collector lists.")
