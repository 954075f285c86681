"""What a job said, and what the monitor said of it: pure functions of texts and of the collector's picture of a run."""

import re
from collections.abc import Iterable, Mapping
from tempfile import gettempdir
from typing import Final

import msgspec

from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.runs.snapshot import RunSnapshot

TOLD: Final = re.compile(r"told rank=(\d+) steps=(\d+) losses=(.*)")
OF_AGENT: Final = "rankscope: "
OF_TRITON: Final = re.compile(r"(nanobind: |- leaked |- \.\.\. skipped |See https://nanobind)")
"""Lines of what triton leaves behind at the end, in an order by address."""
OF_WORKER: Final = re.compile(r"^(\x1b\[\d+m)?\(\w+ pid=\d+\)(\x1b\[0m)? ")
"""What Ray writes before each line of a worker."""
HELD_UP_MAX: Final = 1.2
"""A machine whose cores others use too holds up a rank by some per cent, for a dozen steps."""


WAITS_FOR_CORE: Final = "cpu_pressure"
"""The cause of a straggler that waited for a CPU core."""


class Told(msgspec.Struct, frozen=True):
    """What one rank of a job said: the steps that its framework counts, and its losses with all their digits."""

    steps: int
    losses: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the page. `error` is why it could not be run, in its own words; empty where it ran.

    `theirs` and `ours` are the steps of each rank by the framework's count and by ours. `phases_ms` are medians of rank
    0, `groups` the process groups by name with their operations. `accused` are the sentences about ranks in the run
    without a fault, but for those that waited for a core which others had (`held_up`), `named` the ranks that were
    named in the run with one. `differs` says what was not the same with
    the monitor as without it; empty: loss, status and output were.
    """

    version: str
    error: str = ""
    theirs: tuple[int, ...] = ()
    ours: tuple[int, ...] = ()
    phases_ms: Mapping[str, float] = {}
    groups: Mapping[str, tuple[str, ...]] = {}
    accused: tuple[str, ...] = ()
    held_up: tuple[str, ...] = ()
    slow_rank: int | None = None
    named: tuple[int, ...] = ()
    sentence: str = ""
    differs: tuple[str, ...] = ()


def read_told(stdout: str) -> dict[int, Told]:
    """Return what each rank told, by rank.

    >>> read_told("Loading\\ntold rank=1 steps=2 losses=0x1.8p+0 0x1.0p+0\\n")
    {1: Told(steps=2, losses='0x1.8p+0 0x1.0p+0')}
    """
    found = TOLD.finditer(stdout)
    return {int(rank): Told(int(steps), losses.strip()) for rank, steps, losses in (one.groups() for one in found)}


def read_error(text: str, characters_max: int = 300) -> str:
    """Return the last line that names an exception, as the error's own text; the last line where none does.

    >>> read_error("Traceback ...\\n[rank0]: ValueError: no such schedule\\nFAILED\\n")
    'ValueError: no such schedule'
    """
    lines = [re.sub(r"^\[rank\d+\]: ", "", line).strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"^[\w.]*(Error|Exception|Exit)\b: ?\S", line)]
    raised = [line for line in raised if "ChildFailedError" not in line]
    return ([*lines[-1:], *raised] or [""])[-1][:characters_max]


def find_differences(bare: str, watched: str) -> tuple[str, ...]:
    """Return the lines that only one of two outputs has, `- ` or `+ ` before them; numbers in them may differ.

    >>> find_differences("step 1\\nsaved in 3 s\\n", "step 2\\nsaved in 4 s\\nWARNING: odd\\n")
    ('+ WARNING: odd',)
    >>> find_differences("(One pid=7) ID 8ce8c6b241\\n", "(One pid=8) rankscope: hi\\n(One pid=8) ID aedd1b0158\\n")
    ()
    """
    before, after = _read_lines(bare), _read_lines(watched)
    gone = [f"- {line}" for shape, line in before.items() if shape not in after]
    come = [f"+ {line}" for shape, line in after.items() if shape not in before]
    return tuple(gone + come)


def _read_lines(output: str) -> dict[str, str]:
    """Return the lines by their shape, which has a # for each number, path of a temporary file or address."""
    lines = (OF_WORKER.sub("", line.strip()) for line in re.split(r"[\r\n]+", output))
    kept = [line for line in lines if line and not line.startswith(OF_AGENT) and "told rank=" not in line]
    kept = [line for line in kept if not OF_TRITON.match(line)]
    return {_find_shape(line): line for line in kept}


def _find_shape(line: str) -> str:
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
    line = re.sub(rf"{re.escape(gettempdir())}/\S+|/tmp/\S+", "#", line)
    line = re.sub(r"[█▏▎▍▌▋▊▉ ]+\|", "|", line)
    return re.sub(
        r"#[#.:,/ -]*", "#", re.sub(r"\b(0x)?[0-9a-f]{8,}(-[0-9a-f]{4,12})*\b|\b0x[0-9a-f]+\b|\d+", "#", line)
    )


def compare_told(bare: Mapping[int, Told], watched: Mapping[int, Told]) -> tuple[str, ...]:
    """Return in what the losses and steps of the ranks differ.

    >>> compare_told({0: Told(2, "0x1.0p+0")}, {0: Told(3, "0x1.8p+0")})
    ('rank 0 told 3 steps, without the monitor 2', 'rank 0 told other losses')
    """
    said = []
    for rank in sorted({*bare, *watched}):
        one, other = bare.get(rank), watched.get(rank)
        if one is None or other is None:
            said.append(f"rank {rank} told nothing {'without' if one is None else 'with'} the monitor")
            continue
        if one.steps != other.steps:
            said.append(f"rank {rank} told {other.steps} steps, without the monitor {one.steps}")
        if one.losses != other.losses:
            said.append(f"rank {rank} told other losses")
    return tuple(said)


def read_steps(run: RunSnapshot) -> tuple[int, ...]:
    """Return the steps of each rank that the collector has, by rank."""
    return tuple(rank.totals.steps for rank in sorted(run.ranks, key=lambda one: one.identity.rank))


def read_phases(run: RunSnapshot) -> dict[str, float]:
    """Return the mean phases of a step of rank 0 over its whole run, in milliseconds; those below 0.05 are left out."""
    totals = next(rank.totals for rank in run.ranks if rank.identity.rank == 0)
    means = {name: ns / 1e6 / max(totals.steps, 1) for name, ns in totals.phases_ns.items()}
    return {name: round(ms, 1) for name, ms in sorted(means.items()) if ms >= 0.05}


def read_groups(run: RunSnapshot) -> dict[str, tuple[str, ...]]:
    """Return the operations that were seen in each process group, by the name of the group."""
    found: dict[str, set[str]] = {}
    for one in (one for rank in run.ranks for one in rank.collectives):
        found.setdefault(one.group, set()).add(one.op)
    return {group: tuple(sorted(found[group])) for group in sorted(found)}


def find_accused(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that name ranks, but for what others on the machine may have done to them."""
    return [one for one in findings if one.ranks and (one.slowdown_ratio is None or one.slowdown_ratio >= HELD_UP_MAX)]


def find_held_up(findings: Iterable[Finding]) -> list[Finding]:
    """Return those of the findings about slow ranks that say that these waited for a core, which others had."""
    return [one for one in find_accused(findings) if one.cause == WAITS_FOR_CORE]


def find_named(findings: Iterable[Finding]) -> list[Finding]:
    """Return the stragglers among these, the one that costs most first."""
    slow = [one for one in find_accused(findings) if one.kind == STRAGGLER]
    return sorted(slow, key=lambda one: -(one.lost_rank_seconds or 0.0))
