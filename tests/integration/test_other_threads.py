"""Another thread than the training thread communicates in each step: who is waited for in the training is known."""

from collections.abc import Iterator

import pytest

from rankscope.collector.detect.finding import STRAGGLER
from tests.integration.listening_collector import Life, listening
from tests.integration.served_training import reporting_to
from tests.integration.serving import serving
from tests.integration.torchrun import AGENT, OFTEN, forked_ranks, run, started

SCRIPT = "reduced_beside.py"
STEPS = 150


@pytest.fixture(scope="module", params=["own", "shared"])
def lives(request: pytest.FixtureRequest) -> Iterator[list[Life]]:
    """What two ranks report whose other thread reduces in a group of its own, or in that of the gradients."""
    with listening() as collector:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(forked_ranks(2, *AGENT, SCRIPT, request.param, "--steps", str(STEPS)), environment)
        assert (ended.exit_code, ended.heard_of_agent) == (0, []), ended.stderr
        yield collector.lives


def test_training_threads_collectives_are_known_with_group_and_sequence(lives: list[Life]) -> None:
    for life in lives:
        assert life.losses.errors == {}
        assert len(life.covered_steps) > STEPS / 2  # windows follow each other; a busy machine may drop some
        covered = [one for one in life.collectives if one.step in life.covered_steps]
        # One bucket of gradients in each step, and nothing of the other thread.
        assert sorted(one.step for one in covered) == sorted(life.covered_steps)
        assert {(one.group, one.op) for one in covered} == {("default_pg", "all_reduce")}
        assert None not in {one.sequence for one in covered}
        assert "collectives_lost" not in life.losses.windows_skipped


def test_both_ranks_number_the_collectives_of_a_step_alike(lives: list[Life]) -> None:
    first, second = ({one.step: one.sequence for one in life.collectives if one.sequence is not None} for life in lives)
    shared = [step for step in first if step in second]
    assert len(shared) > STEPS / 3
    assert {step for step in shared if first[step] != second[step]} == set()


def test_slow_rank_is_named_though_another_thread_reduces_in_each_step() -> None:
    with serving() as served:
        environment = reporting_to(served, "beside")
        words = (SCRIPT, "own", "--steps", "2000", "--slow-from", "100", "--slow-ms", "15")
        with started(forked_ranks(2, *AGENT, *words), environment):
            found = served.wait_for_run(
                "beside", lambda run: any((one.kind, one.ranks) == (STRAGGLER, (1,)) for one in run.findings)
            )
    assert {one.ranks for one in found.findings if one.kind == STRAGGLER} == {(1,)}
