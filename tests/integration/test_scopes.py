"""Scopes of a script in captures of a real training, and without the agent."""

from pathlib import Path

import pytest

from rankscope.collector.traces.analysis import analyze
from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, OFTEN, Ended, forked_ranks, run

STEPS = 3


def find_losses(ended: Ended) -> str:
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("losses "))
    return line


@pytest.mark.parametrize("options", [(), ("--compile",)])
def test_scopes_are_ranges_of_a_capture_and_change_no_number(tmp_path: Path, options: tuple[str, ...]) -> None:
    plain = run(forked_ranks(1, "scoped.py", *options))
    settings = {
        "RANKSCOPE_CAPTURE_FOLDER": str(tmp_path), "RANKSCOPE_RUN": "job",
        "RANKSCOPE_CAPTURE_SCHEDULE": f"skip_first=4, warmup=1, active={STEPS}",
    }  # fmt: skip
    with listening() as collector:
        ended = run(
            forked_ranks(1, *AGENT, "scoped.py", *options),
            {**OFTEN, **settings, "RANKSCOPE_COLLECTOR": collector.endpoint},
        )
    assert [one.exit_code for one in (plain, ended)] == [0, 0], ended.stderr
    assert find_losses(ended) == find_losses(plain)
    assert [life.losses.errors for life in collector.lives] == [{}]
    (rank,) = analyze(str(tmp_path / "job" / "steps-5-7")).ranks
    counts = {row.name: row.count for row in rank.user_ranges}
    inside = {} if options else {"inside of compiled code": STEPS}
    # Two layers a step, each with one activation; that on the other thread is not recorded.
    expected = {"forward": STEPS, "layer": 2 * STEPS, "activate": 2 * STEPS, "around": STEPS, "fails": STEPS, **inside}
    assert {name: counts.get(name) for name in (*expected, "inside of compiled code")} == {
        "inside of compiled code": None, **expected,
    }  # fmt: skip
