"""The figures of a load test, and the tables they make."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.load_collector import MIB
from bench.load_probe import Scrape

CORES_SHOWN_MIN: Final = 0.001
"""A thread that takes less is not shown."""


class Load(NamedTuple):
    """A job of so many ranks. `made` to `gaps` are of the whole run, the rest of its measured seconds. `cores` is CPU
    time over time, by thread of the receiving process; `resident_bytes` the most since it started, `..._last` that of
    the end; the `publisher_` ones those of the other process.
    """

    ranks: int
    seconds: float
    reports_per_s: float
    made: int
    acknowledged: int
    admitted: int
    duplicates: int
    gaps: int
    found_slow_rank: bool
    cores: Mapping[str, float]
    resident_bytes: int
    resident_bytes_last: int
    publisher_cores: float
    publisher_bytes: int
    visible_s: tuple[float, ...]
    answered_s: tuple[float, ...]
    read_pauses_s: tuple[float, ...]
    scrapes: tuple[Scrape, ...]
    makers_behind_s: float

    @property
    def lost(self) -> int:
        """Reports that were made and are not in the state of the run."""
        return self.made - self.admitted

    @property
    def whole_cores(self) -> float:
        """Of the whole process."""
        return sum(self.cores.values())


class Storm(NamedTuple):
    """Two storms of connects; times in s from the first connect and from when the new collector listens, CPU seconds
    of each collector until then.
    """

    ranks: int
    settled_s: float
    again_s: float
    start_s: float
    cpu_s: float
    cpu_again_s: float
    resident_bytes: int
    made: int
    dropped: int
    gaps: int


def find_quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed; NaN of none.

    >>> find_quantile([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def render(head: str, loads: Sequence[Load], storms: Sequence[Storm]) -> str:
    """The result file."""
    title = "# What a job of many ranks costs its collector" if loads else "# Storms of connects"
    parts = [title, head]
    if loads:
        parts += [_EXPLANATION, _render_loads(loads), "CPU by thread, cores:", _render_threads(loads)]
    if storms:
        parts += [_STORM_EXPLANATION, _render_storms(storms)]
    return "\n\n".join(parts) + "\n"


_EXPLANATION = """Every rank has an encrypted connection of its own and makes a report a second; the collector has a
store, looks for slow ranks, and is scraped every 15 s. `cores` is CPU time of the receiving process over time,
`us a report` the same over the reports; `publisher` has CPU time over time and memory of the process that renders
pages and answers scrapes. `visible` is how old the newest report of a rank is that a page shows when the
scrape is answered, of each rank and scrape: a report is up to 1 s old when the next one is made. `answered` is from a
Hello to its Welcome, asked 40 times a second, and so how long what comes may lie unread, behind all that came before
it. `reads nothing` is the longest time in which the collector read no message at all though some waited, by its own
count (`rankscope_ingest_stall_max_seconds`). Ranks and collector share the machine, so times are upper bounds; CPU time
and memory (at most, and at the end) are the kernel's account of the collector. `lost` are
reports that were made and are not in the state of the run at its end. `found`: rank 5, which is 1.3 times as slow as
the others; that takes two windows of the profiler, 40 s. `makers late` is time in which a process of ranks made no
reports because the machine did not let it."""

_STORM_EXPLANATION = """All ranks connect within 3 s, encrypted, and tell their process groups; then the collector is
killed (SIGKILL) and started anew. Settled: every rank is welcomed and no backlog is left. CPU seconds are the
collector's until then."""


_LOAD_COLUMNS = (
    "ranks", "reports/s", "lost", "sent twice", "cores", "us a report", "memory", "KiB a rank", "publisher",
    "visible p50 / p99", "answered p99 / longest", "reads nothing for at most", "longest scrapes",
    "found", "makers late",
)  # fmt: skip
_STORM_COLUMNS = (
    "ranks", "settled after", "CPU", "killed, listens again after", "settled again after", "CPU", "memory at most",
    "reports made", "dropped", "gaps",
)  # fmt: skip


def _render_loads(loads: Sequence[Load]) -> str:
    return _render_table(_LOAD_COLUMNS, [_load_row(load) for load in loads])


def _load_row(load: Load) -> list[str]:
    cores, memory = load.whole_cores, load.resident_bytes
    visible = [find_quantile(load.visible_s, share) for share in (0.5, 0.99)]
    answered = [1e3 * find_quantile(load.answered_s, share) for share in (0.99, 1.0)]
    return [
        f"{load.ranks:,}",
        f"{load.reports_per_s:,.0f}",
        str(load.lost),
        str(load.duplicates),
        f"{cores:.3f}",
        f"{cores / load.reports_per_s * 1e6:.1f}",
        f"{memory / MIB:,.0f}, {load.resident_bytes_last / MIB:,.0f} MiB",
        f"{memory / 1024 / load.ranks:.1f}",
        f"{load.publisher_cores:.3f}, {load.publisher_bytes / MIB:,.0f} MiB",
        f"{visible[0]:.2f} / {visible[1]:.2f} s",
        f"{answered[0]:.0f} / {answered[1]:.0f} ms",
        f"{1e3 * max(load.read_pauses_s, default=math.nan):.0f} ms",
        describe_scrapes(load.scrapes),
        "yes" if load.found_slow_rank else "no",
        f"{load.makers_behind_s:.2f} s",
    ]


def describe_scrapes(scrapes: Sequence[Scrape]) -> str:
    """The longest of each page."""
    longest = {one.path.partition("?")[0]: one for one in sorted(scrapes, key=lambda one: one.seconds)}
    told = [f"{path} {1e3 * one.seconds:.0f} ms, {one.size_bytes / 1e6:.1f} MB" for path, one in longest.items()]
    return "; ".join(told) or "-"


def _render_threads(loads: Sequence[Load]) -> str:
    names = sorted({name for load in loads for name, cores in load.cores.items() if cores >= CORES_SHOWN_MIN})
    rows = [[f"{load.ranks:,}", *(f"{load.cores.get(name, 0.0):.3f}" for name in names)] for load in loads]
    return _render_table(["ranks", *names], rows)


def _render_storms(storms: Sequence[Storm]) -> str:
    rows = [
        [
            f"{storm.ranks:,}",
            f"{storm.settled_s:.1f} s",
            f"{storm.cpu_s:.1f} s",
            f"{storm.start_s:.1f} s",
            f"{storm.again_s:.1f} s",
            f"{storm.cpu_again_s:.1f} s",
            f"{storm.resident_bytes / MIB:,.0f} MiB",
            f"{storm.made:,}",
            str(storm.dropped),
            str(storm.gaps),
        ]
        for storm in storms
    ]
    return _render_table(_STORM_COLUMNS, rows)


def _render_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
