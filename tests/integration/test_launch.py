"""How the agent gets into a real job, and that the job does not notice."""

import pytest

from tests.integration.listening_collector import Life, ListeningCollector, listening
from tests.integration.torchrun import SCRIPTS, Ended, python, run, torchrun

AGENT = ("-m", "rankscope.agent")
QUICK = {
    "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.1",
    "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "1",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.9",
}


def watch(collector: ListeningCollector, *command: str, ranks: int = 2, **environment: str) -> Ended:
    given = {**QUICK, "RANKSCOPE_COLLECTOR": collector.endpoint, **environment}
    ended = run(torchrun(ranks, *command), given)
    assert ended.left == ()
    return ended


def losses(ended: Ended) -> list[str]:
    return next(line for line in ended.stdout.splitlines() if line.startswith("losses")).split()[1:]


def check_steps(life: Life, steps: int, *, batches: int = 1) -> None:
    records = life.steps
    assert [record.step for record in records] == list(range(steps))
    assert [record.batches for record in records] == [batches] * steps
    assert [record.backwards for record in records] == [batches] * steps
    assert all(sum(record.phases_ns.values()) == record.duration_ns for record in records)


def test_losses_are_the_same_to_the_last_bit_and_every_step_is_seen() -> None:
    plain = run(torchrun(2, "small_ddp.py"))
    with listening() as collector:
        watched = watch(collector, *AGENT, "small_ddp.py")
    assert plain.exit_code == watched.exit_code == 0
    assert losses(plain) == losses(watched)
    assert len(losses(watched)) == 30
    assert len(collector.lives) == 2
    for life in collector.lives:
        check_steps(life, 30)
        assert life.ending == ("finished", "", None)
        check_windows(life)
    first, second = ([window.first_step for window in life.breakdowns] for life in collector.lives)
    assert first == second


def check_windows(life: Life) -> None:
    """Every all-reduce of the covered steps, numbered without a hole; parts that sum to their window."""
    covered = [step for report in life.reports for span in report.covered_steps for step in range(span[0], span[1] + 1)]
    assert covered == list(range(covered[0], 30))
    reduces = [record for record in life.collectives if record.op == "all_reduce"]
    assert {record.step for record in reduces} == set(covered)
    numbers = [record.sequence for record in life.collectives]
    assert None not in numbers
    first = min(number for number in numbers if number is not None)
    assert sorted(number or 0 for number in numbers) == list(range(first, first + len(numbers)))
    # Two layers of 64 x 64 weights and 64 biases, in float32.
    assert {record.bytes for record in reduces} - {None} == {2 * (64 * 64 + 64) * 4}
    assert life.breakdowns
    for window in life.breakdowns:
        exposed, overlap = window.exposed_communication_ns, window.overlap_ns
        assert window.compute_ns + exposed + window.copy_ns + window.idle_ns == window.window_ns
        assert overlap + exposed == window.communication_ns
        assert window.compute_ns > 0
        assert window.communication_ns > 0


@pytest.mark.parametrize("workers", ["fork", "spawn", "forkserver"])
def test_loader_workers_of_every_kind_work_and_are_not_measured(workers: str) -> None:
    with listening() as collector:
        ended = watch(collector, *AGENT, "small_ddp.py", "--steps", "12", "--workers", workers)
    assert ended.exit_code == 0
    assert [life.rank for life in collector.lives] == [0, 1]
    for life in collector.lives:
        check_steps(life, 12)


def test_without_touching_the_launch_line_accumulation_and_evaluation_are_told_apart() -> None:
    with listening() as collector:
        options = ("--steps", "12", "--accumulate", "3", "--evaluate-every", "4")
        ended = watch(collector, "small_ddp.py", *options, RANKSCOPE="1")
    assert ended.exit_code == 0
    for life in collector.lives:
        check_steps(life, 12, batches=3)
        # no_sync: one all-reduce a step, after the last of its three backwards.
        counts = {record.step: 0 for record in life.collectives}
        for record in life.collectives:
            counts[record.step] += record.op == "all_reduce"
        assert set(counts.values()) == {1}


def test_script_finds_itself_run_as_python_runs_it() -> None:
    with listening() as collector:
        ended = watch(collector, *AGENT, "introspect.py", "3", "--collector", "mine", ranks=1)
    script = SCRIPTS / "introspect.py"
    assert f"name __main__ file {script} argv ['introspect.py', '3', '--collector', 'mine'] path True" in ended.stdout
    assert "early False threads 2" in ended.stdout
    assert "pickled True" in ended.stdout
    assert "exitcode  : 3" in ended.stderr
    assert [life.ending for life in collector.lives] == [("failed", "SystemExit", 3)]


def test_module_is_run_with_its_package_also_where_torch_does_not_load_us() -> None:
    with listening() as collector:
        command = (*AGENT, "-m", "pkg.train", "--lr", "1")
        ended = watch(collector, *command, ranks=1, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "module __main__ pkg 42 ['--lr', '1'] pkg.train" in ended.stdout
    assert [len(life.steps) for life in collector.lives] == [3]


def test_four_calls_work_without_a_launcher_and_a_forked_child_stands_down() -> None:
    with listening() as collector:
        ended = run(python("own_calls.py"), {**QUICK, "RANKSCOPE_COLLECTOR": collector.endpoint})
    assert (ended.exit_code, ended.left) == (0, ())
    assert ended.stdout.splitlines() == ["started True True", "done"]
    (life,) = collector.lives
    assert [record.step for record in life.steps] == list(range(5))
    assert all(record.phases_ns["augment"] > 0 for record in life.steps)
    assert life.ending == ("stopped", "", None)


def test_switch_without_a_rank_does_nothing() -> None:
    with listening() as collector:
        ended = run(python("introspect.py"), {"RANKSCOPE": "1", "RANKSCOPE_COLLECTOR": collector.endpoint})
    assert (ended.exit_code, ended.stderr, collector.lives) == (0, "", [])


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("raise", ("failed", "ValueError: the loss is not a number", 1)),
        ("interrupt", ("interrupted", "KeyboardInterrupt: ", 1)),
    ],
)
def test_uncaught_exception_is_the_end_that_is_told_and_names_the_users_line(
    how: str, ending: tuple[str, str, int]
) -> None:
    with listening() as collector:
        ended = watch(collector, *AGENT, "small_ddp.py", "--steps", "3", "--exit", how, ranks=1)
    assert ended.exit_code == 1
    assert "small_ddp.py" in ended.stderr
    assert [life.ending for life in collector.lives] == [ending]
