"""Lines of a screen: text with colors, measured, cut and wrapped by the columns that characters take."""

import unicodedata
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from rankscope.collector.reports.terminal_colors import Colors

ELLIPSIS: Final = "…"
ZERO_WIDTH: Final = frozenset({"Mn", "Me", "Cf"})
"""Unicode categories of characters that take no column: combining marks and format characters."""


class ColoredText(NamedTuple):
    """A piece of text with its colors (ECMA-48, SGR)."""

    text: str
    codes: tuple[str, ...] = ()


Line: TypeAlias = tuple[ColoredText, ...]


def make_line(*parts: str | ColoredText) -> Line:
    """Return a line of spans and of text without colors."""
    return tuple(part if isinstance(part, ColoredText) else ColoredText(part) for part in parts)


def width_of(text: str) -> int:
    """Return how many columns a terminal gives the text: two for a wide character, none for a combining one.

    >>> width_of("node"), width_of("节点"), width_of("e\u0301")
    (4, 4, 1)
    """
    return len(text) if text.isascii() else sum(map(_width_of_character, text))


def _width_of_character(character: str) -> int:
    if unicodedata.category(character) in ZERO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def cut(line: Line, width: int) -> Line:
    """Return the line in at most `width` columns; an ellipsis marks a cut.

    >>> "".join(span.text for span in cut(make_line("slow", " rank"), 6))
    'slow …'
    """
    if sum(width_of(span.text) for span in line) <= width:
        return line
    kept: list[ColoredText] = []
    room = width - 1
    for span in line:
        text = _take_columns(span.text, room)
        kept.append(span._replace(text=text))
        room -= width_of(text)
        if text != span.text:
            break
    return (*kept, ColoredText(ELLIPSIS)) if width > 0 else ()


def _take_columns(text: str, width: int) -> str:
    """Return the longest beginning of the text that fits into `width` columns."""
    used = 0
    for place, character in enumerate(text):
        used += _width_of_character(character)
        if used > width:
            return text[:place]
    return text


def pad(line: Line, width: int, *, is_right: bool = False) -> Line:
    """Return the line in exactly `width` columns, as a cell of a table."""
    fitted = cut(line, width)
    space = ColoredText(" " * (width - sum(width_of(span.text) for span in fitted)))
    return (space, *fitted) if is_right else (*fitted, space)


def wrap(text: str, width: int, lines_max: int, codes: tuple[str, ...] = ()) -> list[Line]:
    """Return the text wrapped at words, in at most `lines_max` lines; an ellipsis marks a cut."""
    lines, words = [""], text.split(" ")
    while words:
        word = words.pop(0)
        wider = f"{lines[-1]} {word}" if lines[-1] else word
        if width_of(wider) <= width:
            lines[-1] = wider
        elif lines[-1]:
            lines.append("")
            words.insert(0, word)
        else:
            lines[-1] = _take_columns(word, width) or word[:1]
            words.insert(0, word[len(lines[-1]) :])
    if len(lines) > lines_max:
        last = _take_columns(lines[lines_max - 1], width - 1).rstrip() + ELLIPSIS
        lines = [*lines[: lines_max - 1], last]
    return [(ColoredText(line, codes),) for line in lines]


def render(lines: Iterable[Line], colors: Colors) -> list[str]:
    """Return the lines as text for a terminal, without spaces at their ends."""
    return ["".join(colors.paint(*_flat(span)) for span in line).rstrip() for line in lines]


def _flat(span: ColoredText) -> tuple[str, ...]:
    return (span.text, *span.codes)
