"""A collector that suspects a rank of a real job asks it and a peer where they are, and says the line."""

from pathlib import Path

from rankscope.collector.detect.finding import HANG, STRAGGLER, Finding
from rankscope.collector.reports.status_text import render_one_rank
from rankscope.collector.service import Service
from tests.integration.ordering_collectors import running
from tests.integration.serving import wait_for
from tests.integration.torchrun import AGENT, OFTEN, forked_ranks, line_of, started

SCRIPT = "slow_line.py"


def wait_for_lines(service: Service, kind: str) -> Finding:
    """Return the finding of a kind once samples have shown its lines."""

    def look() -> Finding | None:
        findings = [one for run in service.snapshot.runs for one in run.open_findings]
        return next((one for one in findings if one.kind == kind and one.lines is not None), None)

    return wait_for(look, lambda: str([run.open_findings for run in service.snapshot.runs]))


def test_line_of_a_slow_rank_and_the_places_of_a_hang_are_said(tmp_path: Path) -> None:
    wish = tmp_path / "wish"
    wish.write_text("", encoding="utf-8")
    with running(tmp_path) as service:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": service.endpoint, "RANKSCOPE_STALL_S": "2"}
        with started(forked_ranks(2, *AGENT, SCRIPT, str(wish)), environment):
            slow = wait_for_lines(service, STRAGGLER)
            assert slow.lines is not None
            where = f"in time.sleep, called at {SCRIPT}:{line_of(SCRIPT, '# the slow line')} (augment)"
            assert f"per step {where}; its peer rank 0: none." in slow.lines.sentence
            (run,) = service.snapshot.runs
            assert f"line: {slow.lines.sentence}" in render_one_rank(run, run.ranks[1], None)
            incident = next(one for one in service._journal.incidents if one.kind == STRAGGLER)
            assert incident.lines is not None

            wish.write_text("loop", encoding="utf-8")
            hang = wait_for_lines(service, HANG)
            assert hang.lines is not None
            assert hang.lines.sentence.startswith("Rank 1 runs on")
            assert f"{SCRIPT}:{line_of(SCRIPT, 'while number')}" in hang.lines.sentence
            assert "rank 0 waits in torch._tensor.Tensor.backward, called at" in hang.lines.sentence
