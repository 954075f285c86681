"""Every kind of training loop, as users write it, is counted right. docs/loops.md is the table for users."""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, OFTEN, SCRIPTS, Ended, Forked, forked_ranks, run

TRL = "trl_grpo"
NO_TRL = "trl is not installed; the extra `test` has it from Python 3.11 on"
DOCS = Path(__file__).parents[2] / "docs" / "loops.md"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A script and what must be counted on each of its ranks.

    Batches and backwards of successive steps repeat; each batch holds so many samples and tokens. None: not known, as
    without a data loader.
    """

    script: str
    steps: int
    ranks: int = 1
    batches: tuple[int, ...] = (1,)
    backwards: tuple[int, ...] = (1,)
    samples: int | None = 4
    tokens: int | None = None
    says: str = ""
    steps_in_backward: bool = False

    @property
    def command(self) -> Forked:
        """Under the agent, as test_launch starts one by each launcher."""
        return forked_ranks(self.ranks, *AGENT, f"loops/{self.script}.py")


LOOPS = (
    Loop(script="plain", steps=3 * 4),
    Loop(script="accumulation", steps=2 * 12 // 4, batches=(4,), backwards=(4,), samples=2),
    Loop(script="gan", steps=32 // 4, backwards=(2 + 1,)),
    # LBFGS asks for the loss once, and again after each of its four iterations but the last.
    Loop(script="lbfgs", steps=48 // 8, backwards=(1 + 3,), samples=8),
    Loop(script="optimizer_in_backward", steps=2 * 24 // 4, steps_in_backward=True),
    # The scale is halved by the one step that is left out, which is a step of the loop all the same.
    Loop(script="scaled_amp", steps=32 // 4, says="scale 512"),
    Loop(script="compiled", steps=2 * 4),
    Loop(script="fsdp2", ranks=2, steps=2 * 32 // 2 // 4),
    Loop(script="comm_hook", ranks=2, steps=2 * 48 // 2 // 4),
    Loop(script="mesh_2d", ranks=4, steps=40 // 2 // 4),
    Loop(script="evaluation", steps=3 * 20 // 4),
    # Two epochs, two workers, each with five batches of two.
    Loop(script="iterable_workers", steps=2 * 2 * 5, samples=2),
    # No data loader, so no batch is seen.
    Loop(script="bare_gpt", ranks=2, steps=12, batches=(0,), backwards=(2,), samples=None, says="step 8: held out"),
    Loop(script="gradients", steps=12, batches=(0,), samples=None),
    Loop(script="gradient_penalty", steps=2 * 24 // 4),
    Loop(script="forks", steps=40 // 4),
    Loop(script="own_profiler", steps=48 // 4, says="recorded 2 2"),
    Loop(script="lightning_trainer", steps=2 * 24 // 4, says="global step 12"),
    # Of the eight batches of an epoch, of the six in the next, one is fetched ahead: 3 + 2 + 2 + 1, 3 + 2 + 1.
    Loop(script="accelerate_loop", steps=2 * 8 // 2, batches=(3, 2, 2, 1), backwards=(2,)),
    Loop(
        script="transformers_trainer",
        steps=2 * 6 // 2,
        batches=(3, 2, 1),
        backwards=(2,),
        tokens=4 * 8,
        says="global step 6",
    ),
    # One batch is fetched ahead; the loader has eight. Prompts are texts, so samples are not known.
    Loop(script=TRL, steps=6, batches=(2, 1, 1, 1, 1, 1), samples=None, says="global step 6"),
)


@dataclass(frozen=True)
class Seen:
    """How a loop ended, and what its ranks reported."""

    ended: Ended
    lives: list[Life]


Jobs = dict[str, "Future[Seen]"]


def watch(loop: Loop) -> Seen:
    with listening() as collector:
        ended = run(loop.command, {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint})
        return Seen(ended, collector.lives)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Each loop runs once, two at a time: half of what it takes is waiting."""
    with ThreadPoolExecutor(2) as pool:
        yield {loop.script: pool.submit(watch, loop) for loop in LOOPS if loop.script != TRL or find_spec("trl")}
        pool.shutdown(cancel_futures=True)


@pytest.fixture(params=LOOPS, ids=lambda loop: loop.script)
def loop(request: pytest.FixtureRequest) -> Loop:
    """One row of the table."""
    row: Loop = request.param
    if row.script == TRL and not find_spec("trl"):
        pytest.skip(NO_TRL)
    return row


@pytest.fixture
def seen(loop: Loop, jobs: Jobs) -> Seen:
    """What was seen of it."""
    return jobs[loop.script].result()


def repeat(pattern: tuple[int, ...], steps: int) -> list[int]:
    return list(islice(cycle(pattern), steps))


def test_loop_runs_to_its_own_end_and_hears_nothing_of_the_agent(loop: Loop, seen: Seen) -> None:
    assert (seen.ended.exit_code, seen.ended.left) == (0, ()), seen.ended.stderr
    assert loop.says in seen.ended.stdout
    assert seen.ended.heard_of_agent == []


def test_every_rank_reports_to_the_end_and_without_an_error(loop: Loop, seen: Seen) -> None:
    assert [life.rank for life in seen.lives] == list(range(loop.ranks))
    assert {life.ending for life in seen.lives} == {("finished", "", None)}
    assert [life.losses.errors for life in seen.lives] == [{}] * loop.ranks


def test_every_step_is_counted_and_nothing_else(loop: Loop, seen: Seen) -> None:
    for life in seen.lives:
        assert [record.step for record in life.steps] == list(range(loop.steps))


def test_phases_sum_to_the_step(seen: Seen) -> None:
    for record in (record for life in seen.lives for record in life.steps):
        assert sum(record.phases_ns.values()) == record.duration_ns
        assert min(record.phases_ns.values()) >= 0


def test_each_step_has_the_batches_and_backwards_of_the_loop(loop: Loop, seen: Seen) -> None:
    for life in seen.lives:
        assert [record.batches for record in life.steps] == repeat(loop.batches, loop.steps)
        assert [record.backwards for record in life.steps] == repeat(loop.backwards, loop.steps)


def test_each_step_has_the_samples_and_tokens_of_its_batches(loop: Loop, seen: Seen) -> None:
    batches = repeat(loop.batches, loop.steps)
    for life in seen.lives:
        samples = [None if loop.samples is None else loop.samples * count for count in batches]
        assert [record.samples for record in life.steps] == samples
        tokens = [None if loop.tokens is None else loop.tokens * count for count in batches]
        assert [record.tokens for record in life.steps] == tokens


def test_time_of_backward_and_optimizer_is_seen_in_every_step(loop: Loop, seen: Seen) -> None:
    for record in (record for life in seen.lives for record in life.steps):
        assert record.phases_ns["backward"] > 0
        assert (record.phases_ns["optimizer"] > 0) is not loop.steps_in_backward


@pytest.mark.skipif(not find_spec("trl"), reason=NO_TRL)
def test_rollouts_and_rewards_of_trl_are_phases_of_each_step(jobs: Jobs) -> None:
    (life,) = jobs[TRL].result().lives
    for record in life.steps:
        assert record.phases_ns["rollout"] > record.phases_ns["reward"] > 0


MANUAL = (*AGENT, "manual_update.py")


def test_loop_without_torch_optim_is_told_once_how_to_mark_steps() -> None:
    with listening() as collector:
        ended = run(forked_ranks(2, *MANUAL), {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint})
    assert ended.exit_code == 0, ended.stderr
    (said,) = [line for line in ended.heard_of_agent if "backward passes" in line]
    assert said.startswith(
        "rankscope: rank 0 ran 30 backward passes and stepped no optimizer of torch.optim, so no step was "
    )
    assert "call rankscope.step() at the end of each step" in said


def test_a_loop_that_says_its_steps_is_told_nothing() -> None:
    with listening() as collector:
        ended = run(forked_ranks(1, *MANUAL, "--say-steps"), {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint})
        (life,) = collector.lives
    assert ended.exit_code == 0, ended.stderr
    assert [line for line in ended.heard_of_agent if "backward passes" in line] == []
    assert [record.backwards for record in life.steps] == [1] * 30


def spell(pattern: tuple[int, ...]) -> str:
    return ", ".join(map(str, pattern))


def test_docs_name_every_loop_and_what_was_counted() -> None:
    row_of_the_table = r"^\| .*\[`(\w+)`\]\(.*?\) \| (\d+) \| (\d+) \| ([\d, ]+) \| ([\d, ]+) \|"
    rows = re.findall(row_of_the_table, DOCS.read_text(), re.MULTILINE)
    counted = [(row.script, str(row.ranks), str(row.steps), spell(row.batches), spell(row.backwards)) for row in LOOPS]
    assert rows == counted


def test_every_script_is_a_row_of_the_table() -> None:
    assert sorted(path.stem for path in (SCRIPTS / "loops").glob("*.py")) == sorted(row.script for row in LOOPS)
