"""The picture of `rankscope top` in the quick start: `python -m tests.screenshots.top [docs/images/top.svg]`.

It runs `rankscope demo` and `rankscope top` at a pseudo-terminal of 100 x 18, waits until the slow rank is found, and
draws what the terminal shows then, sign by sign and color by color.
"""

import argparse
import io
import re
from pathlib import Path
from typing import Final

from pyte import Screen
from rich.console import Console
from rich.text import Text

from tests.integration.terminal import top
from tests.screenshots.demo import SLOW_RANK, running_demo

DEFAULT: Final = Path(__file__).parents[2] / "docs" / "images" / "top.svg"
COLUMNS, LINES = 100, 18
FONTS_FROM_ELSEWHERE: Final = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)
"""rich asks for its font over the network; the reader's own monospaced one will do."""
PLAIN: Final = "default"
COLORS: Final = {"brown": "yellow", "brightblack": "bright_black"}
"""Names that the emulator has for what rich calls otherwise."""


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT)
    file: Path = parser.parse_args().file
    with running_demo() as address, top("--url", address, columns=COLUMNS, lines=LINES) as terminal:
        terminal.wait_until(is_found)
        picture = draw(terminal.screen)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(picture)


def is_found(lines: list[str]) -> bool:
    """Whether the finding and the slow rank's bars, those of its device too, are to be seen, and all is drawn."""
    (row,) = [line for line in lines if line.split()[:1] == [str(SLOW_RANK)]] or [""]
    return lines[1].startswith(f"! Rank {SLOW_RANK}") and "#" in row and "q quit" in lines[-1]


def draw(screen: Screen) -> str:
    """An SVG of what the terminal shows."""
    console = Console(
        record=True, width=screen.columns, file=io.StringIO(), color_system="truecolor", force_terminal=True
    )
    for line in range(screen.lines):
        text = Text(no_wrap=True)
        for column in range(screen.columns):
            sign = screen.buffer[line][column]
            color = COLORS.get(sign.fg, sign.fg)
            style = " ".join(
                [color if color != PLAIN else "", "bold" if sign.bold else "", "reverse" if sign.reverse else ""]
            )
            text.append(sign.data, style=style.strip() or None)
        console.print(text)
    return FONTS_FROM_ELSEWHERE.sub("", console.export_svg(title="rankscope top"))


if __name__ == "__main__":
    main()
