"""Say in lines what has become of a capture that was ordered. Pure."""

import shlex
from collections.abc import Iterable
from typing import Final

from rankscope.collector.captures.capture import COMPLETE, ENDED, STATE_WORDS, Capture
from rankscope.collector.reports.trace_cells import printable, rank_list
from rankscope.measure.units import format_duration, s_to_ns

REPORT: Final = "report.html"
PRICE_SETTING: Final = "capture_pause_s_max"
"""It is in the reason of a rank that refuses a capture because of its expected cost."""


def describe_order(capture: Capture) -> str:
    """Return the line for a capture that has been ordered: its id, ranks and steps."""
    ranks = rank_list(one.rank for one in capture.ranks).text
    plural = "s" if len(capture.ranks) != 1 else ""
    return f"capture {printable(capture.id)} of {printable(capture.run)}: rank{plural} {ranks}, {_name_steps(capture)}"


def describe_change(before: Capture, now: Capture) -> list[str]:
    """Return the lines for what is new in a capture: other steps, a longer expected pause, another state."""
    lines = []
    if (now.first_step, now.last_step) != (before.first_step, before.last_step):
        lines.append(f"ordered once more: {_name_steps(now)}")
    expected_s, known_s = (_find_longest(one.expected_pause_s for one in capture.ranks) for capture in (now, before))
    if expected_s is not None and (known_s is None or expected_s > known_s):
        lines.append(f"it is expected to stop training for {_format_pause(expected_s)}")
    if now.state != before.state and now.state not in ENDED:
        words = STATE_WORDS.get(now.state)
        lines.append(printable(now.state) if words is None else f"{now.state}: {words}")
    return lines


def describe_end(capture: Capture) -> list[str]:
    """Return the lines for a capture that has ended: how, what it has cost, and the first lines of its analysis."""
    lines = [f"{capture.state}{_describe_problem(capture)}"]
    pause_s = _find_longest(one.pause_s for one in capture.ranks)
    if pause_s is not None:
        lines.append(f"it has stopped training for {_format_pause(pause_s)}")
    elif capture.state == COMPLETE:
        lines.append("for how long it has stopped training is not known")
    return lines + [printable(line) for line in capture.verdict.splitlines()]


def describe_link(capture: Capture, place: str) -> str:
    """Return the line that leads from an incident to its capture: its state, and where its report is, or why there is
    none. `place` is the address or the folder of its files, with a slash at its end.
    """
    head = f"capture {printable(capture.id)}: {printable(capture.state)}"
    if any(file.name == REPORT for file in capture.files):
        return f"{head}, {place}{REPORT}"
    return f"{head}: {printable(capture.problem)}" if capture.problem else head


def _describe_problem(capture: Capture) -> str:
    if not capture.problem:
        return ""
    cure = f". To take it all the same: {_write_command(capture)}" if PRICE_SETTING in capture.problem else ""
    return f"{', but ' if capture.state == COMPLETE else ': '}{printable(capture.problem)}{cure}"


def _write_command(capture: Capture) -> str:
    """Return the command that orders a capture once more, whatever it is expected to cost."""
    ranks = ",".join(str(one.rank) for one in capture.ranks)
    words = ["rankscope", "capture", shlex.quote(printable(capture.run)), "--ranks", ranks]
    if capture.first_step is not None and capture.last_step is not None:
        words += ["--steps", str(capture.last_step - capture.first_step + 1)]
    return " ".join([*words, *(f"--{name}" for name in capture.options), "--force"])


def _name_steps(capture: Capture) -> str:
    if capture.first_step is None or capture.last_step is None:
        return "steps not known yet"
    if capture.first_step == capture.last_step:
        return f"step {capture.first_step}"
    return f"steps {capture.first_step}-{capture.last_step}"


def _find_longest(pauses_s: Iterable[float | None]) -> float | None:
    """Return the longest of those that are known, seconds. Ranks wait for each other, so that one counts."""
    return max((one for one in pauses_s if one is not None), default=None)


def _format_pause(pause_s: float) -> str:
    return format_duration(s_to_ns(pause_s))
