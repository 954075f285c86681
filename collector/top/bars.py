"""Draw numbers as bars and curves in a line. Colors only repeat what letters say."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from rankscope.collector.reports.terminal_colors import BLUE, CYAN, GRAY, GREEN, MAGENTA, RED, YELLOW
from rankscope.collector.top.screen_lines import ColoredText, Line
from rankscope.measure.records import PHASES

PHASE_SIGNS: Final = {"data": ("d", YELLOW), "forward": ("f", GREEN), "backward": ("b", BLUE),
                      "optimizer": ("o", MAGENTA), "other": ("-", GRAY)}  # fmt: skip
USER_PHASE: Final = ("u", CYAN)
"""A phase that the user named."""
DEVICE_SIGNS: Final = (("compute", "#", GREEN), ("exposed_communication", "~", RED), ("idle", ".", GRAY))
COPY_SIGN: Final = (" ", "")
"""The remainder: copies that overlap with nothing else."""
HEIGHTS: Final = "▁▂▃▄▅▆▇█"


def draw_phases(phases_ns: Mapping[str, float], full_ns: float, width: int) -> Line:
    """Return the phases of a step as a bar; a step of `full_ns` fills the width.

    >>> "".join(part.text for part in draw_phases({"data": 10.0, "forward": 20.0, "mine": 10.0}, 80.0, 24))
    'dddffffffuuu'
    """
    if full_ns <= 0:
        return ()
    names = [*(name for name in PHASES if name in phases_ns), *(name for name in phases_ns if name not in PHASES)]
    parts = [(phases_ns[name], *PHASE_SIGNS.get(name, USER_PHASE)) for name in names]
    return _draw_bar(parts, full_ns, width)


def draw_device(ratios: Mapping[str, float], width: int) -> Line:
    """Return the breakdown of the device's time as a bar; empty before the first window.

    >>> "".join(part.text for part in draw_device({"compute": 0.5, "exposed_communication": 0.25, "idle": 0.25}, 8))
    '####~~..'
    """
    parts = [(ratios[name], sign, color) for name, sign, color in DEVICE_SIGNS if name in ratios]
    copies = 1.0 - sum(share for share, _, _ in parts)
    return _draw_bar([*parts, (max(copies, 0.0), *COPY_SIGN)], 1.0, width) if parts else ()


def draw_key(phases: AbstractSet[str], ratios: AbstractSet[str]) -> Line:
    """Return what the signs of the bars with these parts mean; empty where there are none.

    >>> "".join(part.text for part in draw_key({"forward", "data", "mine"}, {"compute", "idle"}))
    'd data  f forward  u own phases   # compute  . idle'
    """
    of_phases = [(sign, color, name) for name, (sign, color) in PHASE_SIGNS.items() if name in phases]
    of_phases += [(*USER_PHASE, "own phases")] if phases - PHASE_SIGNS.keys() else []
    of_device = [(sign, color, name.replace("_", " ")) for name, sign, color in DEVICE_SIGNS if name in ratios]
    key: list[ColoredText] = []
    for group, gap in ((of_phases, "  "), (of_device, "   ")):
        for place, (sign, color, name) in enumerate(group):
            before = "" if not key else gap if place == 0 else "  "
            key += [ColoredText(before), ColoredText(sign, (color,)), ColoredText(f" {name}", (GRAY,))]
    return tuple(key)


def _draw_bar(parts: Sequence[tuple[float, str, str]], full: float, width: int) -> Line:
    """Return a bar whose parts end at their rounded cumulative sum, so that rounding does not add up."""
    bar: list[ColoredText] = []
    drawn, total = 0, 0.0
    for amount, sign, color in parts:
        total += amount
        end = min(width, round(width * total / full))
        bar.append(ColoredText(sign * (end - drawn), (color,) if color else ()))
        drawn = max(drawn, end)
    return tuple(bar)


def draw_curve(values: Sequence[float], width: int) -> str:
    """Return the last `width` values as a curve of eighths, from the smallest to the largest of them; flat where these
    differ by less than 1 %, which is no change of a step.

    >>> draw_curve([1.0, 2.0, 3.0, 8.0], 3), draw_curve([100.0, 100.5], 8)
    ('▁▂█', '▁▁')
    """
    shown = values[-width:] if width > 0 else ()
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high - low < low / 100:
        return HEIGHTS[0] * len(shown)
    return "".join(HEIGHTS[min(7, int(8 * (value - low) / (high - low)))] for value in shown)
