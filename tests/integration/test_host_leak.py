"""A rank of a real job leaks on the host, in a control group with a limit: it is found before the kernel ends it, with
what holds the memory, and its peer, whose cache levels off, is not accused.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.memory.growth import MEMORY_GROWTH
from rankscope.collector.service import Service
from tests.integration.ordering_collectors import running
from tests.integration.serving import wait_for
from tests.integration.torchrun import AGENT, forked_ranks, line_of, started

SCRIPT = "leaking.py"
LEAKING_RANK = 1
GIB = 2**30
LIMIT_BYTES = 6 * GIB
KEPT_BYTES = 15_000_000
ROW_BYTES = 266
"""A dict of one entry and its text, by the resident memory of a process that has 1.2 million (CPython 3.11)."""
ROWS = 60_000
DEADLINE_S = 240.0
PLACES = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of LIMIT_BYTES. Only root can make one, and in many containers not even root."""
    for mount, limit in PLACES:
        folder = Path(mount, f"rankscope-leak-{secrets.token_hex(4)}")
        try:
            folder.mkdir()
            (folder / limit).write_text(str(LIMIT_BYTES))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        yield folder
        wait_until_empty(folder / "cgroup.procs")
        folder.rmdir()
        return
    pytest.skip("no control group with a limit of memory can be made here")


def wait_until_empty(processes: Path) -> None:
    wait_for(lambda: processes.read_text() == "" or None, processes.read_text)


def find_leak(service: Service) -> Finding:
    """Return the finding once it is known what holds the memory."""

    def look() -> Finding | None:
        found = [one for run in service.snapshot.runs for one in run.open_findings if one.kind == MEMORY_GROWTH]
        return next((one for one in found if one.lines is not None and one.lines.is_named), None)

    return wait_for(
        look, lambda: str([(run.open_findings, run.end) for run in service.snapshot.runs]), deadline_s=DEADLINE_S
    )


@pytest.mark.parametrize(
    ("kind", "held", "bytes_per_step"),
    [
        ("tensors", "a list of no known owner (likely a local variable)", KEPT_BYTES),
        ("rows", "a list, attribute rows of Trainer", ROWS * ROW_BYTES),
    ],
)
def test_leak_is_found_before_its_end(kind: str, held: str, bytes_per_step: int, group: Path, tmp_path: Path) -> None:
    enter = ("sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group))
    with running(tmp_path) as service:
        job = [*enter, *forked_ranks(2, *AGENT, SCRIPT, kind).command]
        with started(job, {"RANKSCOPE_COLLECTOR": service.endpoint}):
            found = find_leak(service)
            (run,) = service.snapshot.runs
            assert run.end is None
    assert found.ranks == (LEAKING_RANK,)
    assert found.evidence["growth_bytes_per_step"] == pytest.approx(bytes_per_step, rel=0.15)
    assert found.evidence["available_bytes"] < LIMIT_BYTES
    assert found.lines is not None
    sentence = found.lines.sentence
    where = f"{SCRIPT}:{line_of(SCRIPT, f'# keeps {kind}')}"
    assert held in sentence
    assert where in sentence
    (_, amount, unit, *_) = sentence.split()
    assert unit == "MiB"
    assert float(amount) * 2**20 == pytest.approx(bytes_per_step, rel=0.15)
