"""Write what a pre-flight concluded: the JSON, the hosts to exclude, and the history of the nodes."""

import os
import re
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from rankscope.agent.preflight.checks import NodeCheck
from rankscope.agent.preflight.judgement import find_slowest, list_subjects
from rankscope.agent.preflight.results import PreflightReport, RankResults
from rankscope.measure.errors import UnavailableError
from rankscope.measure.preflights import PAST_MAX

HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""Names come from the ranks: one with a space or a line break would be more than one host, or an option."""
HISTORY_BYTES_MAX: Final = 16 * 2**20
"""How much of the end of a history is read: some thousand pre-flights of 32 nodes."""


class PreflightLine(msgspec.Struct, frozen=True, kw_only=True):
    """One pre-flight in a history: rates of the slowest rank by node and check, devices by node, and who was named."""

    wall_s: float
    devices: dict[str, str]
    rates: dict[str, dict[str, float]]
    named: tuple[str, ...] = ()


class PreflightHistory:
    """The earlier pre-flights in a file of JSON lines. `unreadable` counts lines that are none."""

    def __init__(self, lines: Sequence[PreflightLine], unreadable: int = 0) -> None:
        self._lines = lines
        self.unreadable = unreadable

    def find_past(self, results: Sequence[RankResults]) -> dict[str, dict[str, list[float]]]:
        """Return by check and node the rates of the last PAST_MAX pre-flights in which the node had its device of now,
        and was not named.
        """
        devices = {one.node: one.device for one in results}
        past: dict[str, dict[str, list[float]]] = {}
        for line in self._lines:
            for node, rates in line.rates.items():
                if node in line.named or line.devices.get(node) != devices.get(node, ""):
                    continue
                for check, rate in rates.items():
                    if rate > 0:
                        past.setdefault(check, {}).setdefault(node, []).append(rate)
        return {check: {node: rates[-PAST_MAX:] for node, rates in nodes.items()} for check, nodes in past.items()}


def read_history(path: str) -> PreflightHistory:
    """Return the pre-flights in a file; none where there is no file yet. Raise UnavailableError."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - HISTORY_BYTES_MAX))
            parts = file.read(HISTORY_BYTES_MAX).splitlines()
    except FileNotFoundError:
        return PreflightHistory(())
    except OSError as error:
        raise UnavailableError(f"the history {path} cannot be read: {error.strerror}. Name another file.") from error
    lines, unreadable = [], 0
    for part in parts[1 if size > HISTORY_BYTES_MAX else 0 :]:
        try:
            lines.append(msgspec.json.decode(part, type=PreflightLine))
        except msgspec.MsgspecError:
            unreadable += 1
    return PreflightHistory(lines, unreadable)


def build_line(report: PreflightReport, checks: Sequence[NodeCheck]) -> PreflightLine:
    """Return the line of a pre-flight for the history."""
    rates: dict[str, dict[str, float]] = {}
    for check in checks:
        for node, subject in find_slowest(list_subjects(report.results, check)).items():
            rates.setdefault(node, {})[check.name] = statistics.median(subject.values)
    return PreflightLine(
        wall_s=report.wall_s,
        devices={one.node: one.device for one in report.results},
        rates=rates,
        named=tuple(one.node for one in report.named),
    )


def append_history(path: str, line: PreflightLine) -> None:
    """Add a line to a history in one write. Raise UnavailableError."""
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")
    except OSError as error:
        raise UnavailableError(
            f"the history {path} cannot be written: {error.strerror}. Name another file."
        ) from error  # fmt: skip


def find_hosts(report: PreflightReport) -> tuple[list[str], list[str]]:
    """Return the named nodes that are host names, and those that are none and so cannot be excluded."""
    names = [one.node for one in report.named]
    return [name for name in names if HOST_NAME.fullmatch(name)], [n for n in names if not HOST_NAME.fullmatch(n)]
