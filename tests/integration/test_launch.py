"""How the agent gets into a real job, and that the job does not notice."""

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankscope.agent.deferred_start import TRAINING_STEPS
from rankscope.agent.profiler.window_plan import FULL_FIRST_INTERVAL_STEPS
from rankscope.agent.steps.step_intervals import find_chosen
from rankscope.measure.records import CollectiveRecord, StepRecord, WindowBreakdown
from tests.integration.listening_collector import ListeningCollector, listening
from tests.integration.torchrun import (
    AGENT,
    ALONE,
    OFTEN,
    SCRIPTS,
    Ended,
    Forked,
    forked_ranks,
    python,
    run,
    started,
    torchrun,
)

NOBODY = {"RANKSCOPE_COLLECTOR": "tcp://127.0.0.1:1"}

WEIGHTS_BYTES = 2 * (64 * 64 + 64) * 4
"""Two layers of 64 x 64 weights and 64 biases, in float32: what small_ddp.py reduces each step."""


def watch(collector: ListeningCollector, command: Sequence[str] | Forked, **environment: str) -> Ended:
    ended = run(command, {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, **environment})
    assert ended.left == ()
    return ended


def find_losses(ended: Ended) -> list[str]:
    (line,) = re.findall(r"^losses (.*)$", ended.stdout, re.MULTILINE)
    losses: list[str] = line.split()
    return losses


def check_steps(records: Sequence[StepRecord], steps: int, *, micro_batches: int = 1) -> None:
    assert [record.step for record in records] == list(range(steps))
    assert {record.backwards for record in records} == {micro_batches}
    assert {record.batches for record in records} == {micro_batches}
    assert all(sum(record.phases_ns.values()) == record.duration_ns for record in records)


def check_collectives(records: Sequence[CollectiveRecord], covered: set[int]) -> None:
    """One all-reduce of all weights in every covered step and nowhere else, in the only group."""
    assert {(record.group, record.op) for record in records} == {("default_pg", "all_reduce")}
    assert sorted(record.step for record in records) == sorted(covered)
    assert {record.bytes for record in records} - {None} == {WEIGHTS_BYTES}


def check_parts(window: WindowBreakdown) -> None:
    communication_only_ns = window.exposed_communication_ns
    assert window.compute_ns + communication_only_ns + window.copy_ns + window.idle_ns == window.window_ns
    assert window.overlap_ns + communication_only_ns == window.communication_ns
    assert min(window.compute_ns, window.communication_ns) > 0


def test_losses_are_bit_equal_while_everything_is_seen() -> None:
    # Steps of 3 ms alone would end before the first report, and more windows would wait for it than may.
    job = ("small_ddp.py", "--steps", "15", "--pause-s", "0.02")
    plain = run(forked_ranks(2, *job))
    with listening() as collector:
        watched = watch(collector, torchrun(2, *AGENT, *job))
    assert (plain.exit_code, watched.exit_code) == (0, 0)
    assert find_losses(watched) == find_losses(plain)
    assert len(find_losses(watched)) == 4 * 15
    first, second = collector.lives
    sequence_less_step = set()
    for life in (first, second):
        assert (life.ending, life.losses.errors) == (("finished", "", None), {})
        check_steps(life.steps, 60)
        check_collectives(life.collectives, life.covered_steps)
        sequence_less_step |= {(record.sequence or 0) - record.step for record in life.collectives}
        for window in life.breakdowns:
            check_parts(window)
    # One all-reduce a step: were a number missing or a rank out of step, the difference would not stay the same.
    assert len(sequence_less_step) == 1
    # Full windows are two steps long; they begin with step 4 and with the step that is chosen of the next 32.
    chosen = 4 + find_chosen(1, FULL_FIRST_INTERVAL_STEPS)
    assert [window.first_step for window in first.breakdowns] == [4, 5, chosen, chosen + 1]
    assert [window.first_step for window in second.breakdowns] == [4, 5, chosen, chosen + 1]


def test_start_by_variable_tells_accumulation_from_evaluation() -> None:
    options = ("--epochs", "3", "--steps", "4", "--accumulate", "3", "--evaluate")
    with listening() as collector:
        ended = watch(collector, torchrun(2, "small_ddp.py", *options), RANKSCOPE="1")
    assert ended.exit_code == 0
    assert [life.rank for life in collector.lives] == [0, 1]
    for life in collector.lives:
        check_steps(life.steps, 12, micro_batches=3)
        # no_sync: one all-reduce a step, after the last of its three backwards; an evaluation has none.
        check_collectives(life.collectives, life.covered_steps)


def test_loader_workers_of_every_kind_work_and_are_not_measured() -> None:
    options = ("--steps", "4", "--workers", "fork", "spawn", "forkserver")
    with listening() as collector:
        ended = watch(collector, python(*AGENT, "small_ddp.py", *options), **ALONE)
    assert (ended.exit_code, len(find_losses(ended))) == (0, 3 * 4)
    (life,) = collector.lives
    check_steps(life.steps, 3 * 4)


def test_script_finds_itself_run_as_python_runs_it(tmp_path: Path) -> None:
    link = tmp_path / "linked.py"
    link.symlink_to(SCRIPTS / "introspect.py")
    command = (os.path.relpath(link, SCRIPTS), "3", "--collector", "its own")
    plain = run(python(*command))
    with listening() as collector:
        watched = watch(collector, python(*AGENT, *command))
    assert (watched.exit_code, watched.stdout) == (plain.exit_code, plain.stdout)
    assert plain.exit_code == 3
    # Neither torch nor numpy was there before the script set its environment, and the link's neighbor was found.
    assert "[] 2 42" in plain.stdout
    # A script this short may end before the collector has welcomed it, and says nothing then; it waits for nobody.
    assert {life.ending for life in collector.lives} <= {None, ("failed", "SystemExit", 3)}


def test_module_runs_as_under_python_if_torch_does_not_load_us() -> None:
    command = ("-m", "package_job.train", "--lr", "1")
    plain = run(python(*command))
    with listening() as collector:
        watched = watch(collector, python(*AGENT, *command), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert plain.stdout.startswith("__main__ package_job package_job.train True 42")
    assert (watched.exit_code, watched.stdout) == (0, plain.stdout)
    assert [len(life.steps) for life in collector.lives] == [3]


def test_calls_work_without_launcher_and_fork_stands_down() -> None:
    with listening() as collector:
        ended = watch(collector, python("own_calls.py"), RANKSCOPE_CONSTANT_WARMUP_STEPS="1")
    assert ended.exit_code == 0
    assert ended.stdout.splitlines() == ["throughput None", "started True True", "steps 2", "done"]
    (life,) = collector.lives
    assert [record.step for record in life.steps] == list(range(5))
    assert [(record.samples, record.tokens) for record in life.steps] == [(64, number) for number in range(5)]
    assert [report.totals.samples for report in life.reports][-1] == 5 * 64
    assert life.losses.errors == {"batch_sizes": 1, "user_calls": 1, "model_flops": 1}
    assert "per_step is -1; it must be above 0" in ended.stderr
    assert [report.totals.model_flops for report in life.reports][-1] == 1_000 * sum(range(5))
    assert "samples is 'many', which is no whole number" in ended.stderr
    assert "steps/s" not in ended.stderr
    assert all(record.phases_ns["augment"] > 0 for record in life.steps)
    assert all(sum(record.phases_ns.values()) == record.duration_ns for record in life.steps)
    assert life.ending == ("stopped", "", None)


def test_switch_without_a_rank_does_nothing() -> None:
    with listening() as collector:
        ended = watch(collector, python("ends.py", "return"), RANKSCOPE="1")
    assert (ended.exit_code, ended.stderr, collector.lives) == (0, "", [])


NOT_WATCHED = (
    "rankscope: this training is not watched: RANKSCOPE=1 watches the ranks of a process group, and this process has "
    "none. Start it by `python -m rankscope.agent SCRIPT`, or by torchrun.\n"
)


@pytest.mark.parametrize(("steps", "said"), [(TRAINING_STEPS - 1, ""), (TRAINING_STEPS, NOT_WATCHED)])
def test_training_without_a_rank_is_told_once_it_is_not_watched(steps: int, said: str) -> None:
    # 19 steps are a test of the model, and so are the child's; a process that trains says it for its children, too.
    ended = run(python("lone.py", str(steps)), {"RANKSCOPE": "1"})
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "done\n", said)


@pytest.mark.parametrize(
    ("how", "exit_code", "ending"),
    [
        ("return", 0, ("finished", "", None)),
        ("raise", 1, ("failed", "ValueError: the loss is not a number", 1)),
        ("raise-hooked", 1, ("failed", "ValueError: the loss is not a number", 1)),
        ("exit-2", 2, ("failed", "SystemExit", 2)),
        ("exit-text", 1, ("failed", "SystemExit", 1)),
        ("os-exit", 7, None),
        ("kill", -signal.SIGKILL, None),
    ],
)
def test_script_that_never_trains_ends_as_itself_and_is_reported(how: str, exit_code: int, ending: object) -> None:
    with listening() as collector:
        ended = watch(collector, Forked((*AGENT, "ends.py", how)), **ALONE)
    assert (ended.exit_code, ended.stdout.partition(" ")[0]) == (exit_code, "torch")
    # Also whoever is gone in an instant says how it ends, but for those that end without the interpreter.
    assert [life.ending for life in collector.lives if life.goodbye is not None] == ([] if ending is None else [ending])


def test_traceback_ends_with_the_users_own_lines() -> None:
    plain, watched = run(python("ends.py", "raise")), run(python(*AGENT, "ends.py", "raise"), {**ALONE, **NOBODY})
    # The call in the script, the function in the script with its line (3.13 marks both), and the error.
    of_script = plain.stderr[plain.stderr.index(f'  File "{SCRIPTS / "ends.py"}"') :]
    assert len(of_script.splitlines()) >= 5
    said = [line for line in watched.stderr.splitlines(keepends=True) if not line.startswith("rankscope: ")]
    assert "".join(said).endswith(of_script)


def test_ctrl_c_is_an_interruption() -> None:
    with listening() as collector:
        environment = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint}
        with started(python(*AGENT, "ends.py", "wait"), environment) as job:
            collector.wait_until(lambda lives: any(life.reports for life in lives), 60.0)
            job.wait_for_output("torch")  # an interruption amid the import of torch may be lost in it, agent or not
            job.launcher.send_signal(signal.SIGINT)
            ended = job.wait()
    assert (ended.exit_code, ended.left) == (-signal.SIGINT, ())
    assert [life.ending for life in collector.lives] == [("interrupted", "KeyboardInterrupt: ", 1)]
