"""Color text for a terminal, and leave it plain elsewhere."""

from collections.abc import Mapping
from typing import Final, NamedTuple, TextIO

RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
BLUE: Final = "34"
MAGENTA: Final = "35"
CYAN: Final = "36"
GRAY: Final = "90"
BOLD: Final = "1"
DIM: Final = "2"
BLINK: Final = "5"
REVERSE: Final = "7"


class Colors(NamedTuple):
    """Colors for a stream; `are_on` False leaves text plain."""

    are_on: bool = False

    def paint(self, text: str, *codes: str) -> str:
        """Return the text in these colors (ECMA-48, SGR).

        >>> Colors().paint("slow", RED), len(Colors(are_on=True).paint("slow", BOLD, RED))
        ('slow', 15)
        """
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.are_on and codes else text


PLAIN: Final = Colors()


def choose_colors(stream: TextIO, environment: Mapping[str, str]) -> Colors:
    """Return colors for a terminal; none for a file or a pipe, with NO_COLOR (no-color.org), or with TERM=dumb."""
    wanted = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return Colors(are_on=wanted and stream.isatty())
