"""The callbacks for frameworks: steps are the framework's own, also where the agent watches already."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from rankscope.collector.runs.checkpoints import RunCheckpoints
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.records import StepRecord
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, OFTEN, Ended, Forked, forked_ranks, python, run

LIGHTNING = "callbacks/lightning_fit.py"
TRANSFORMERS = "callbacks/transformers_train.py"
COMMANDS: dict[str, list[str] | Forked] = {
    "lightning": Forked((LIGHTNING, "lightning.pytorch", "1")),
    "pytorch_lightning beside the hooks": forked_ranks(1, *AGENT, LIGHTNING, "pytorch_lightning", "1"),
    "lightning's own launcher": python(LIGHTNING, "lightning.pytorch", "2"),
    "transformers": Forked((TRANSFORMERS,)),
    "transformers beside the hooks": forked_ranks(1, *AGENT, TRANSFORMERS),
}
LIGHTNING_JOBS = [name for name in COMMANDS if "lightning" in name]
TRANSFORMERS_JOBS = [name for name in COMMANDS if "transformers" in name]
TWO_OPTIMIZERS = "two optimizers"
AGAIN = "transformers again and again"
WRONG_LAUNCH = "lightning's own launcher, and the agent on the launch line"
OTHERS: dict[str, list[str] | Forked] = {
    TWO_OPTIMIZERS: Forked(("callbacks/lightning_gan.py",)),
    AGAIN: Forked(("callbacks/transformers_again.py",)),
    WRONG_LAUNCH: python(*AGENT, LIGHTNING, "lightning.pytorch", "2"),
}

Seen = tuple[Ended, list[Life]]


def watch(command: list[str] | Forked) -> Seen:
    with listening() as collector:
        ended = run(command, {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint})
        return ended, collector.lives


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[str, "Future[Seen]"]]:
    """Each runs once, two at a time: half of what it takes is waiting."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(watch, command) for name, command in (COMMANDS | OTHERS).items()}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def seen(request: pytest.FixtureRequest, jobs: dict[str, "Future[Seen]"]) -> Seen:
    """How the job of that name ended, and what its ranks reported."""
    return jobs[request.param].result()


each_job = pytest.mark.parametrize("seen", COMMANDS, indirect=True)
each_lightning = pytest.mark.parametrize("seen", LIGHTNING_JOBS, indirect=True)
each_transformers = pytest.mark.parametrize("seen", TRANSFORMERS_JOBS, indirect=True)


def steps_of(seen: Seen) -> list[list[StepRecord]]:
    return [life.steps for life in seen[1]]


@each_job
def test_job_ends_as_without_us_and_all_ranks_report_no_error(seen: Seen) -> None:
    ended, lives = seen
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    assert ended.heard_of_agent == []
    assert [life.losses.errors for life in lives] == [{}] * len(lives)
    assert {life.ending for life in lives} == {("finished", "", None)}


@each_job
def test_steps_are_counted_as_the_framework_counts_them(seen: Seen) -> None:
    global_step = int(seen[0].stdout.rpartition("global step ")[2].split()[0])
    assert global_step in (2 * 12 // 2, 2 * 6 // 2)
    for steps in steps_of(seen):
        assert [record.step for record in steps] == list(range(global_step))
        assert [record.backwards for record in steps] == [2] * global_step
        assert all(sum(record.phases_ns.values()) == record.duration_ns for record in steps)


@each_lightning
def test_lightning_steps_hold_training_batches_not_validation(seen: Seen) -> None:
    for steps in steps_of(seen):
        assert [(record.batches, record.samples) for record in steps] == [(2, 8)] * 12


@each_transformers
def test_trainer_steps_hold_training_batches_not_evaluation(seen: Seen) -> None:
    # Of the six batches of an epoch one is fetched ahead; a batch has 4 rows of 8 tokens.
    for steps in steps_of(seen):
        held = [(record.batches, record.samples, record.tokens) for record in steps]
        assert held == [(3, 12, 96), (2, 8, 64), (1, 4, 32)] * 2


def find_saved(steps: list[StepRecord]) -> list[int]:
    return [record.step for record in steps if record.phases_ns.get("checkpoint")]


@each_lightning
def test_lightning_checkpoint_is_a_phase_of_the_following_step(seen: Seen) -> None:
    # Saved after 4, 8 and 12 steps; after the last comes no further step.
    assert [find_saved(steps) for steps in steps_of(seen)] == [[4, 8]] * len(seen[1])


@each_transformers
def test_trainer_checkpoint_is_a_phase_of_the_following_step(seen: Seen) -> None:
    # Saved after 2, 4 and 6 steps.
    assert [find_saved(steps) for steps in steps_of(seen)] == [[2, 4]]


@each_job
def test_collector_sees_each_checkpoint_of_a_framework_once(seen: Seen) -> None:
    known = RunCheckpoints()
    for rank, life in enumerate(seen[1]):
        for report in life.reports:
            known.record(rank, ReportFields.of(report), 0.0)
    saved = find_saved(seen[1][0].steps)
    assert len(saved) == 2
    assert [one.step for one in known.seen.latest] == saved
    assert known.seen.count == 2


@pytest.mark.parametrize("seen", [TWO_OPTIMIZERS], indirect=True)
def test_optimizers_stepping_in_one_batch_make_one_step(seen: Seen) -> None:
    ended, (life,) = seen
    # Eight batches; the second optimizer steps in four of them.
    assert ended.stdout.rstrip().endswith("global step 12"), ended.stderr
    assert [record.backwards for record in life.steps] == [1, 2] * 4


@pytest.mark.parametrize("seen", [AGAIN], indirect=True)
def test_training_after_a_failed_one_and_predictions_is_counted(seen: Seen) -> None:
    ended, (life,) = seen
    assert (ended.exit_code, ended.heard_of_agent) == (0, []), ended.stderr
    assert "failed: no such metric" in ended.stdout
    assert "global step 4" in ended.stdout
    # Two steps that fail in their evaluation, two, two more from the checkpoint, and three of a plain loop.
    assert [record.backwards for record in life.steps] == [1] * (2 + 2 + 2 + 3)
    assert [record.samples for record in life.steps][-3:] == [8, 8, 8]
    assert all(sum(record.phases_ns.values()) == record.duration_ns for record in life.steps)


@pytest.mark.parametrize("seen", [WRONG_LAUNCH], indirect=True)
def test_process_that_joined_a_larger_job_after_start_says_so(seen: Seen) -> None:
    ended, lives = seen
    assert ended.exit_code == 0
    said = "rankscope: this process is measured as rank 0 of 1, but its process group made it rank 0 of 2 after"
    assert ended.stderr.count(said) == 1
    assert "Leave -m rankscope.agent out of the launch line and set RANKSCOPE=1: then the agent st" in ended.stderr
    assert [len(life.steps) for life in lives] == [12, 12]


@pytest.mark.parametrize("seen", ["lightning's own launcher"], indirect=True)
def test_ranks_that_lightning_starts_itself_know_who_they_are(seen: Seen) -> None:
    identities = [life.hello.identity for life in seen[1]]
    assert [(known.rank, known.local_rank, known.world_size) for known in identities] == [(0, 0, 2), (1, 1, 2)]
    assert len({known.run for known in identities}) == 1


@pytest.mark.parametrize("seen", ["pytorch_lightning beside the hooks"], indirect=True)
def test_callback_is_of_the_lightning_the_script_imported(seen: Seen) -> None:
    assert "callback pytorch_lightning." in seen[0].stdout


@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("lightning", ("lightning", "pytorch_lightning"), "needs PyTorch Lightning, and neither `lightning` nor "),
        ("transformers", ("transformers",), "needs Transformers, which cannot be imported "),
    ],
)
def test_missing_framework_is_named_with_the_cure(module: str, missing: tuple[str, ...], message: str) -> None:
    hide = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))"
    script = f"{hide}; import rankscope.agent.integrations.{module}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500)
    assert f"ImportError: rankscope.agent.integrations.{module} {message}" in ended.stderr
    assert f"`pip install {module}` installs it." in ended.stderr


def test_agent_imports_no_framework() -> None:
    script = (
        "import sys, rankscope.agent.integrations, rankscope.agent.session; "
        "print({'lightning', 'pytorch_lightning', 'transformers', 'torch'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500)
    assert (ended.stdout, ended.stderr) == ("set()\n", "")
