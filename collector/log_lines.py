"""Log to stderr, in lines that names sent by peers can neither forge nor color."""

import logging
import sys
from typing import Final

from rankscope.collector.reports.trace_cells import printable

VERY_VERBOSE: Final = 2


class _PrintableFormatter(logging.Formatter):
    """Spell out control characters, so that a name sent by a peer can neither steer a terminal nor forge a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line without its traceback, which may have several lines."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def start_logging(level: int, verbose: int) -> None:
    """Log to stderr from `level` on; `verbose` 1 adds the debug lines of rankscope, 2 those of its libraries."""
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose >= VERY_VERBOSE else level, handlers=[to_stderr])
    if verbose:
        logging.getLogger("rankscope").setLevel(logging.DEBUG)
