"""What faults and bad input cost, as the tests measure it that make them: the numbers of docs/faults.md.

With FAULT_FIGURES=FILE in the environment every such test appends a line of JSON to the file; without it nothing is
written. `python -m tests.integration.fault_tables FILE` makes the tables of it. Nothing here is asserted: how long
something took is told, never tested.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankscope.measure.proc_stat import read_stat
from tests.integration.faults import PageAccount
from tests.integration.serving import Served

FILE: Final = os.environ.get("FAULT_FIGURES", "")


class FaultFigure(msgspec.Struct, tag="fault", kw_only=True):
    """One fault: what it was, what happens, and what it cost the ranks of one run."""

    fault: str
    outcome: str
    command: str
    ranks: int
    made: int
    """Step records that all ranks together have made."""
    lost: dict[str, int]
    """Those that are lost and counted, by reason."""
    unaccounted: int
    """Those of which the page does not tell what became of them."""
    gaps: int
    """Reports that never came."""
    delivered_s: float | None
    """From the end of the fault until everything made by then was on the page; None where it is going on all along."""
    peak_bytes: int | None
    """The most memory that the collector, the last one, has had resident; None where it is no process of its own."""


class InputFigure(msgspec.Struct, tag="input", kw_only=True):
    """One bad input: what was sent, as what it was refused and how often, and what it cost."""

    sent: str
    refused: str
    command: str
    count: int
    grown_bytes: int
    """By how much the collector's resident memory grew meanwhile."""
    answer_s: float
    """The longest that the good rank beside it has waited for an acknowledgement."""


Figure = FaultFigure | InputFigure


class Fault:
    """One fault in a test: made before it, told when it is over, and settled once everything is delivered."""

    def __init__(self, fault: str, outcome: str) -> None:
        self._fault = fault
        self._outcome = outcome
        self._over_s: float | None = None
        self._delivered_s: float | None = None

    def is_over(self) -> None:
        """From now on what was held up can be delivered."""
        self._over_s = time.monotonic()

    def is_delivered(self) -> None:
        """What had been made when the fault was over is on the page now. Only the first call counts."""
        if self._delivered_s is None and self._over_s is not None:
            self._delivered_s = time.monotonic() - self._over_s

    def settle(self, served: Served | None, accounts: Mapping[int, PageAccount]) -> None:
        """These are the accounts at the end; None: the collector is in the process of the test."""
        self.is_delivered()
        every = accounts.values()
        note(
            FaultFigure(
                fault=self._fault,
                outcome=self._outcome,
                command=name_command(),
                ranks=len(accounts),
                made=sum(account.made for account in every),
                lost={
                    "overwritten": sum(account.overwritten for account in every),
                    "dropped_in_reports": sum(account.dropped for account in every),
                    "late": sum(account.late for account in every),
                },
                unaccounted=sum(abs(account.unaccounted) for account in every),
                gaps=sum(account.gaps for account in every),
                delivered_s=self._delivered_s,
                peak_bytes=None if served is None else read_peak_bytes(served.pid),
            )
        )


def note(figure: Figure) -> None:
    """Keep a figure, where somebody wants them."""
    if FILE:
        with Path(FILE).open("ab") as file:
            file.write(msgspec.json.encode(figure) + b"\n")


def read_figures(path: Path) -> list[Figure]:
    """Every figure of a file, in the order of their notes. Raises msgspec.DecodeError for what is none."""
    return [msgspec.json.decode(line, type=Figure) for line in path.read_bytes().splitlines()]


def name_command() -> str:
    """What runs the present test alone; of a test with parameters, all of them."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].partition("[")[0]
    prefix = "SOAK=1 " if os.environ.get("SOAK") == "1" else ""
    return f"{prefix}python -m pytest {test}"


def read_peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident, from /proc."""
    return _read_status(pid, "VmHWM")


def read_resident_bytes(pid: int) -> int:
    """The memory that a process has resident, from /proc."""
    return _read_status(pid, "VmRSS")


def read_own_bytes(pid: int) -> int:
    """What is resident of a process's own memory: no pages of files, which come and go as code runs first."""
    return _read_status(pid, "RssAnon")


def read_cpu_s(pid: int) -> float:
    """CPU time of a process since its start, all threads, in user and system mode, from /proc."""
    stat = read_stat(f"/proc/{pid}")
    if stat is None or stat.cpu_ticks is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return stat.cpu_ticks / os.sysconf("SC_CLK_TCK")


def _read_status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/{pid}/status has no {name}")
