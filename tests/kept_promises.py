"""What was broken once, and the tests that hold it now. `make soak` runs those of real jobs five times each: of what
depends on threads, signals and the moment of an end, one run shows little. The others are pure: one run shows what many
would.

    python -m tests.kept_promises            the tests of real jobs, as pytest is told them
    python -m tests.kept_promises --write    writes the table of docs/faults.md
"""

import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- kept: written by `python -m tests.kept_promises --write` -->\n", "<!-- end of what is kept -->"
STRAGGLERS: Final = "tests/unit/collector/detect/stragglers/"
STEPS: Final = "tests/unit/collector/steps/"
JOBS: Final = "tests/integration/"
"""The folder of real jobs, browsers and sockets."""


class Promise(NamedTuple):
    """What holds, and the tests that show it, as pytest names them: a file, or a file and a function."""

    what: str
    tests: tuple[str, ...]


PROMISES: Final = (
    Promise(
        "training on any thread ends as without the monitor, also with a window open",
        ("tests/integration/test_training_on_threads.py", "tests/unit/agent/profiler/test_session_thread.py"),
    ),
    Promise(
        "a killed worker of a data loader ends training by torch's own error, with status 1",
        ("tests/integration/test_killed_worker.py", "tests/integration/test_interrupted_training.py"),
    ),
    Promise(
        "steps are counted on after an exception of a signal handler, wherever it comes",
        (
            "tests/integration/test_interrupted_training.py",
            "tests/unit/agent/steps/test_interrupted_hooks.py",
            "tests/unit/agent/test_own_thread.py",
        ),
    ),
    Promise(
        "under gevent and eventlet training goes on, and the monitor says that it does not",
        (
            "tests/integration/test_program_shapes.py::test_program_is_the_same_with_the_monitor",
            "tests/unit/agent/test_green_threads.py",
        ),
    ),
    Promise(
        "every program that `python` starts is started, the same way", ("tests/integration/test_started_programs.py",)
    ),
    Promise(
        "a training that is not watched, or goes from thread to thread, is told so",
        (
            "tests/integration/test_launch.py::test_training_without_a_rank_is_told_once_it_is_not_watched",
            "tests/unit/agent/profiler/test_window_scheduler.py::test_no_window_begins_after_three_of_changing_threads",
        ),
    ),
    Promise("a frame of the monitor is never the user's line", ("tests/unit/measure/test_own_files.py",)),
    Promise("a forked child exits", ("tests/unit/agent/profiler/test_forked_child.py",)),
    Promise(
        "no loss above its step, no time below 0, no share above 1 is told, answered or exported",
        (
            "tests/properties/test_bounds_laws.py",
            "tests/unit/collector/runs/test_findings.py::test_loss_that_cannot_be_is_left_out_and_noted",
            "tests/unit/collector/publish/metrics/test_pages.py::test_value_outside_its_metric_s_range_is_absent_and_counted",
            "tests/unit/collector/test_valid_answers.py",
        ),
    ),
    Promise(
        "what a collector missed is no time that the run lost, and runs that fall silent together are not lost",
        (
            "tests/integration/test_faults_collector.py::test_collector_stopped_for_a_while_catches_up_without_loss",
            "tests/integration/test_lost_runs.py::test_collector_hearing_nobody_has_one_incident_no_failed_run",
            "tests/unit/collector/runs/test_goodput.py",
            "tests/unit/collector/runs/test_hearing.py",
        ),
    ),
    Promise(
        "a rank waits for a CPU core for no more than all of the time",
        ("tests/properties/test_bounds_laws.py::test_time_of_one_thread_is_at_most_all_of_the_time",),
    ),
    Promise(
        "a constant fault has one begin, and no other level since some step",
        (f"{STRAGGLERS}test_detector.py::test_constant_fault_in_wandering_noise_has_one_begin_only",),
    ),
    Promise(
        "every text on a canvas of the live page has its room",
        ("tests/integration/test_live_page_charts.py::test_every_text_on_a_canvas_has_its_room",),
    ),
    Promise(
        "facts of a run that has ended are the same in the next collector",
        ("tests/unit/collector/runs/test_saved_runs.py::test_facts_of_an_ended_run_survive_a_restart_unchanged",),
    ),
    Promise(
        "a crash is put on no hardware: it may have come of a session of the agent's own",
        ("tests/unit/collector/runs/test_ended_runs.py::test_crash_is_put_on_no_hardware",),
    ),
    Promise(
        "ranks that have finished are nowhere said not to have reported",
        ("tests/unit/collector/runs/test_ended_runs.py::test_ranks_that_have_finished_are_said_to_have_reported",),
    ),
    Promise(
        "how a rank was killed is said no further than the evidence goes",
        ("tests/unit/agent/sidecar/test_sidecar_endings.py",),
    ),
    Promise(
        "time that is not attributed is unknown, not 0, and waits in broadcasts are charged",
        (
            "tests/integration/test_buckets.py",
            f"{STEPS}test_rank_medians.py",
            f"{STEPS}test_step_table.py::test_broadcast_wait_is_charged_if_there_is_one_other_only",
        ),
    ),
    Promise(
        "a capture that the page calls complete has its files there",
        ("tests/integration/test_captures_on_live_page.py::test_pressed_button_captures_a_training",),
    ),
    Promise(
        "nobody else on the machine gets into the collector that rank 0 starts",
        (
            "tests/integration/test_embedded.py::test_nobody_else_on_the_machine_gets_in",
            "tests/integration/test_embedded_keys.py",
            "tests/integration/test_keyed_job.py",
        ),
    ),
    Promise("a run of a new name is never refused", ("tests/integration/test_many_runs.py",)),
    Promise(
        "a state that pages nobody has a reason",
        ("tests/contract/test_alert_rules.py::test_each_state_of_0_or_1_has_an_alert_or_a_reason",),
    ),
    Promise(
        "store, journal, spill and captures are their user's alone; a peer's parts cost what they are",
        (
            "tests/integration/test_private_files.py",
            "tests/unit/collector/test_private_files.py",
            "tests/unit/collector/ingest/test_held_bytes.py",
        ),
    ),
    Promise("the installed wheel copies every file, and all of them render", ("tests/contract/test_wheel.py",)),
    Promise(
        "a rank that leaves amid training with status 0 ended first, and not its victims",
        (
            "tests/integration/test_endings.py::test_rank_returning_amid_training_ended_before_its_victims",
            "tests/unit/collector/runs/test_run_end.py",
        ),
    ),
    Promise(
        "an uncaught exception is told, whatever hook shows it", ("tests/unit/agent/shutdown/test_script_exit.py",)
    ),
    Promise("errors of storage drivers are said in a line", ("tests/unit/collector/traces/test_driver_errors.py",)),
)


def list_jobs() -> list[str]:
    """Return the tests of real jobs, each once."""
    return list(dict.fromkeys(test for promise in PROMISES for test in promise.tests if test.startswith(JOBS)))


def render() -> str:
    """Return the table."""
    rows = ["| what holds | five times in `make soak` | once |", "|---|---|---|"]
    for promise in PROMISES:
        jobs = [_name(test) for test in promise.tests if test.startswith(JOBS)]
        others = [_name(test) for test in promise.tests if not test.startswith(JOBS)]
        rows.append(f"| {promise.what} | {', '.join(jobs)} | {', '.join(others)} |")
    return "\n".join(rows) + "\n"


def _name(test: str) -> str:
    file, _, function = test.removeprefix("tests/").partition("::")
    return f"`{file}::{function}`" if function else f"`{file}`"


def read_table() -> str:
    """Return what stands on the page."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{render()}{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        print(*list_jobs(), sep="\n")  # noqa: T201 - a program's result
