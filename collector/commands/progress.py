"""Show a progress bar for commands that read many files."""

import contextlib
import sys
from collections.abc import Iterator

from rankscope.collector.traces.files import Progress

ALL_GOOD, SOME_FAILED, NOTHING_USABLE = 0, 1, 2
"""Exit statuses of `analyze` and `merge`."""


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[Progress | None]:
    """Yield a function that moves a bar on stderr; None where stderr is no terminal or tqdm is missing."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an optional extra
    except ImportError:
        yield None
        return
    with tqdm(unit=f" {unit}", disable=None, leave=False) as bar:

        def move(done: float, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        yield move
