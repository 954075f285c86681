"""Saves that no script has marked, in real jobs of two ranks: who saves, at which line, how fast."""

from pathlib import Path

import pytest

from rankscope.collector.detect.finding import PERIODIC_WORK, STRAGGLER, Finding
from rankscope.collector.reports.status_text import render_one_rank
from rankscope.collector.service import Service
from tests.integration.ordering_collectors import running
from tests.integration.serving import wait_for
from tests.integration.torchrun import AGENT, OFTEN, forked_ranks, line_of, started

SCRIPT = "saving.py"


def wait_for_finding(service: Service, kind: str, rank: int) -> Finding:
    """Return the open finding of a kind about a rank."""

    def look() -> Finding | None:
        findings = [one for run in service.snapshot.runs for one in run.open_findings]
        return next((one for one in findings if one.kind == kind and one.ranks == (rank,)), None)

    return wait_for(look, lambda: str([run.open_findings for run in service.snapshot.runs]))


@pytest.mark.parametrize(("what", "rank", "kind", "cause", "call"), [
    ("alone", 0, PERIODIC_WORK, "periodic_work", "torch.save"),
    ("shared", 1, STRAGGLER, "storage", "torch.distributed.checkpoint.save"),
])  # fmt: skip
def test_rank_that_others_wait_for_is_told_with_its_save(  # noqa: PLR0917
    tmp_path: Path, what: str, rank: int, kind: str, cause: str, call: str
) -> None:
    end = tmp_path / "end"
    with running(tmp_path) as service:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": service.endpoint}
        with started(forked_ranks(2, *AGENT, SCRIPT, what, str(end)), environment) as job:
            found = wait_for_finding(service, kind, rank)
            (run,) = service.snapshot.runs
            end.touch()
            job.wait()
    line = f"{SCRIPT}:{line_of(SCRIPT, f'# {what}')} (save_{what})"
    assert found.cause == cause
    assert f"saving a checkpoint: {call}, called at {line}, " in found.why
    assert ("its peer as much at" in found.why) == (cause == "storage")
    (of_rank,) = [one for one in run.ranks if one.identity.rank == rank]
    assert of_rank.saves is not None
    assert of_rank.saves[0].line == line
    assert of_rank.saves[0].last_ns >= 400_000_000
    assert call in render_one_rank(run, of_rank, None)
    assert run.checkpoints.count
