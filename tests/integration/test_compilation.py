"""A real job in which torch compiles a frame of one rank again and again: frame, guard and time are said."""

import re
from pathlib import Path

import pytest

from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.runs.compilations import describe_compilations
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.service import Service
from rankscope.measure.records import Compilations
from tests.integration.ordering_collectors import running
from tests.integration.serving import wait_for
from tests.integration.torchrun import AGENT, ALONE, OFTEN, forked_ranks, line_of, python, run, started

SCRIPT = "recompiling.py"
LATE = "late_compiling.py"
LATE_FRAME = f"{LATE}:{line_of(LATE, '# the compiled frame')} (scale)"
FRAME = f"{SCRIPT}:{line_of(SCRIPT, '# the compiled frame')} (scale)"


def wait_for_recompilation(service: Service) -> Finding:
    def look() -> Finding | None:
        findings = [one for run in service.snapshot.runs for one in run.open_findings]
        return next((one for one in findings if one.kind == STRAGGLER and one.cause == "recompilation"), None)

    return wait_for(look, lambda: str([run.open_findings for run in service.snapshot.runs]))


def train_until_found(tmp_path: Path, ranks: int, script: str) -> tuple[Finding, RunSnapshot, str]:
    """Train until a recompilation is found; the finding, what is known of the run at its end, and what was printed."""
    wish = tmp_path / "wish"
    wish.write_text("", encoding="utf-8")
    with running(tmp_path) as service:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": service.endpoint}
        with started(forked_ranks(ranks, *AGENT, script, str(wish)), environment) as training:
            finding = wait_for_recompilation(service)
            wish.write_text("stop", encoding="utf-8")
            ended = training.wait()
        (run,) = service.snapshot.runs
    return finding, run, ended.stdout


def test_cause_is_frame_and_guard_of_the_rank_compiling_again(tmp_path: Path) -> None:
    finding, run, printed = train_until_found(tmp_path, 2, SCRIPT)
    assert finding.ranks == (1,)
    assert re.search(rf"torch.compile, all of it for {re.escape(FRAME)}: the guard k == \d+ failed", finding.why)
    truth = {
        int(rank): (int(calls), float(spent_s))
        for rank, calls, spent_s in re.findall(r"rank (\d): (\d+) compiling calls, ([\d.]+) s", printed)
    }
    for number, (calls, spent_s) in truth.items():
        seen = run.ranks[number].compilations
        assert isinstance(seen, Compilations)
        assert (seen.compiled, seen.recompiled, seen.unseen) == (calls, calls - 1, 0)
        assert 0.5 * spent_s < seen.duration_ns / 1e9 < spent_s
    made, lasted_s = re.findall(r"(\d+) steps in ([\d.]+) s", printed)[0]
    durations = run.step_durations
    assert durations is not None
    assert int(made) - 8 <= durations.steps <= int(made) - 3
    assert 0.3 * float(lasted_s) < durations.sum_s < float(lasted_s)
    first, again = describe_compilations(run.compilations)
    assert re.fullmatch(
        r"[\d.]+ m?s of the [\d.]+ s until the end of step \d+ on rank \d: 1 frame|.*: \d frames", first
    )
    assert again.startswith(f"again {truth[1][0] - 1} times on all ranks together, ")
    assert f": most for {FRAME}, the guard k == " in again


def test_ranks_that_compile_once_late_in_the_run_are_named(tmp_path: Path) -> None:
    finding, run, printed = train_until_found(tmp_path, 3, LATE)
    (took_s,) = map(float, re.findall(r"step 60 took ([\d.]+) s", printed))
    assert (finding.ranks, finding.since_step) == ((1, 2), 60)
    assert f"all of it for {LATE_FRAME}" in finding.why
    assert finding.evidence["stall_ns"] / 1e9 == pytest.approx(took_s, rel=0.1)
    assert run.goodput.slow_ns / 1e9 == pytest.approx(took_s, rel=0.1)


def test_training_whose_whole_step_is_compiled_is_as_without_the_agent() -> None:
    words = ("compiled_steps.py", "--steps", "150", "--pause-s", "0.01", "--whole")
    plain, watched = run(python(*words), ALONE), run(python(*AGENT, *words), {**ALONE, **OFTEN})
    assert (watched.exit_code, watched.stdout) == (0, plain.stdout)
