"""Control groups that bound the CPU time of a process, and leave it that much, whatever else this machine does."""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

PERIOD_US = 20_000
VERSION_1 = Path("/sys/fs/cgroup/cpu")
VERSION_2 = Path("/sys/fs/cgroup")
WEIGHT_MAX = {"cpu.shares": "262144", "cpu.weight": "10000"}
"""The most that a group may have beside others: tests that run beside it hardly take its time."""


def _make(folder: Path, cores: float) -> None:
    folder.mkdir()
    quota_us = round(cores * PERIOD_US)
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
    for name, weight in WEIGHT_MAX.items():
        if (folder / name).exists():
            (folder / name).write_text(weight)


@contextlib.contextmanager
def cpu_quotas(cores: Sequence[float]) -> Iterator[list[Path]]:
    """Yield the folders of control groups that have so many cores each. Raise OSError where that is not allowed."""
    root = VERSION_1 if (VERSION_1 / "cpu.cfs_quota_us").exists() else VERSION_2
    made: list[Path] = []
    try:
        for number, bound in enumerate(cores):
            folder = root / f"preflight-{secrets.token_hex(4)}-{number}"
            made.append(folder)
            _make(folder, bound)
        yield made
    finally:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


@cache
def why_none() -> str:
    """Return why control groups with a bound cannot be made here; empty if they can."""
    try:
        with cpu_quotas([0.5]):
            return ""
    except OSError as error:
        return f"no control groups with a CPU quota can be made here ({error}): it takes root and the cpu controller"
