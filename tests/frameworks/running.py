"""Run a job three ways: without the monitor, with it, and with it while one rank is made slow."""

import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from rankscope.collector.runs.snapshot import RunSnapshot
from tests.frameworks.outcome import (
    Outcome,
    compare_told,
    find_accused,
    find_differences,
    find_held_up,
    find_named,
    read_error,
    read_groups,
    read_phases,
    read_steps,
    read_told,
)
from tests.frameworks.rows import Row
from tests.integration.serving import Served, have_ended
from tests.integration.torchrun import AGENT, CHECKOUT, ROOT, Ended, Forked, forked_ranks, forked_torchrun, started

JOBS: Final = Path(__file__).parent / "jobs"
CACHE: Final = ROOT / ".venv-frameworks" / "cache"
"""What frameworks compile when they first start."""
DEADLINE_S: Final = 600.0
WITH_MONITOR: Final = {
    "RANKSCOPE": "1",
    "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.5",
    "RANKSCOPE_CONSTANT_SAMPLE_INTERVAL_S": "1",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.2",
}
"""Windows and samples so often that a job of some seconds has several; everything else is as by default."""


def run_row(row: Row, served: Served) -> Outcome:
    """Run it, and say what became of it."""
    known = _find_version(row.package)
    if known is None:
        return Outcome(version="", error=f"{row.package} is not installed")
    bare = _run(row, {})
    if bare.exit_code != 0:
        return Outcome(version=known, error=read_error(bare.stderr + bare.stdout))
    healthy_run, slow_run = f"{row.name}-healthy", f"{row.name}-slow"
    collector = {**WITH_MONITOR, "RANKSCOPE_COLLECTOR": served.endpoint}
    watched = _run(row, {**collector, "RANKSCOPE_RUN": healthy_run})
    slow = _run(
        row,
        {
            **collector,
            "RANKSCOPE_RUN": slow_run,
            "JOB_SLOW": f"{row.slow_rank}:{row.slow_ms}:{row.slow_after}",
        },
    )
    healthy, faulty = _read_run(served, healthy_run), _read_run(served, slow_run)
    told = read_told(bare.stdout)
    differs = (*_compare(bare, watched), *_compare_fault(bare, slow))
    if healthy is None or faulty is None:
        error = next(iter(differs), "no rank has reported to the collector")
        return Outcome(version=known, error=error, differs=differs)
    named, held_up = find_named(faulty.findings), find_held_up(healthy.findings)
    return Outcome(
        version=known,
        theirs=tuple(told[rank].steps for rank in sorted(told)),
        ours=read_steps(healthy),
        phases_ms=read_phases(healthy),
        groups=read_groups(healthy),
        accused=tuple(one.sentence for one in find_accused(healthy.findings) if one not in held_up),
        held_up=tuple(one.sentence for one in held_up),
        slow_rank=row.slow_rank,
        named=tuple(sorted({rank for one in named for rank in one.ranks})),
        sentence=named[0].sentence if named else faulty.abstained or "",
        differs=differs,
    )


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _run(row: Row, adds: Mapping[str, str]) -> Ended:
    CACHE.mkdir(parents=True, exist_ok=True)
    script = (str(JOBS / f"{row.script}.py"), *row.arguments)
    command: list[str] | Forked
    if row.package == "torch" and not row.launcher:
        # These share one import of torch, after which RANKSCOPE=1 comes too late.
        command = forked_ranks(row.ranks, *(AGENT if adds else ()), *script)
        adds = {**adds, "RANKSCOPE": ""}
    else:
        command = [*row.launcher, *script] if row.launcher else forked_torchrun(row.ranks, *script)
    environment = {
        "PYTHONPATH": CHECKOUT,
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(CACHE),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **row.variables,
        **adds,
    }
    with tempfile.TemporaryDirectory() as folder, started(command, environment, folder=Path(folder)) as job:
        return job.wait(DEADLINE_S)


def _read_run(served: Served, name: str) -> RunSnapshot | None:
    if served.read_run(name) is None:
        return None
    return served.wait_for_run(name, have_ended, deadline_s=60)


def _compare(bare: Ended, watched: Ended) -> tuple[str, ...]:
    """Return in what the run with the monitor differs from the one without it."""
    status = (
        [f"status {watched.exit_code}: {read_error(watched.stderr)}"] if watched.exit_code != bare.exit_code else []
    )
    return (
        *status,
        *compare_told(read_told(bare.stdout), read_told(watched.stdout)),
        *find_differences(bare.stdout, watched.stdout),
        *find_differences(bare.stderr, watched.stderr),
        *(f"the monitor said: {line}" for line in watched.heard_of_agent),
        *(f"left behind: {line}" for line in watched.left),
    )


def _compare_fault(bare: Ended, slow: Ended) -> tuple[str, ...]:
    """Return in what the run with a fault differs, which only takes longer."""
    if slow.exit_code != bare.exit_code:
        return (f"with the slow rank status {slow.exit_code}: {read_error(slow.stderr)}",)
    return tuple(f"with the slow rank {one}" for one in compare_told(read_told(bare.stdout), read_told(slow.stdout)))
