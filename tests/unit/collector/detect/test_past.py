"""Closed findings, in the past tense with their length."""

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.past import ENDED, FINISHED, PAST_FORMS, WENT_ON, close_finding, put_in_past


def straggler(since_step: int | None = 60) -> Finding:
    return Finding(
        kind="straggler", ranks=(2,), since_step=since_step, cause="host_cpu", sentence="Rank 2 is slow.",
        past="Rank 2 was slow{when}: because.",
    )  # fmt: skip


def hang(since_step: int | None = 31) -> Finding:
    return Finding(
        kind="hang", since_step=since_step, cause="missing_rank", sentence="It hangs.", suggestion="Look.",
        severity="critical", past="Rank 1 was stalled. The run{when}.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("since", "until", "lasted_s", "told"),
    [
        (60, 159, 192.0, "from step 60 to step 159 (3.2 min)"),
        (60, 159, None, "from step 60 to step 159"),
        (None, 159, 42.0, "until step 159 (42 s)"),
        (60, None, 42.0, "from step 60 on for 42 s"),
        # Made longer by what comes after the last step that is known.
        (60, 59, None, "from step 60 on"),
        (None, None, 42.0, "for 42 s"),
    ],
)
def test_past_slowness_states_its_period(
    since: int | None, until: int | None, lasted_s: float | None, told: str
) -> None:
    closed = close_finding(straggler(since), until_step=until, lasted_s=lasted_s)
    assert closed.sentence == f"Rank 2 was slow {told}: because."
    assert (closed.until_step, closed.lasted_s) == (until, lasted_s)


def test_begin_of_a_past_drift_is_stated_as_an_estimate() -> None:
    drifting = msgspec.structs.replace(straggler(40), pattern="drifting")
    assert " from about step 40 to step 60 (" in close_finding(drifting, until_step=60, lasted_s=4.0).sentence
    assert " from about step 40 on" in close_finding(drifting).sentence
    ranged = msgspec.structs.replace(drifting, since_step_min=31, since_step_max=44)
    closed = close_finding(ranged, until_step=60, lasted_s=4.0)
    assert " from about step 40 (between 31 and 44) to step 60 (" in closed.sentence


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("", "hung in step 31 for 45 s"),
        (WENT_ON, "hung in step 31 for 45 s, and then went on"),
        (ENDED, "hung in step 31 for 45 s, until it ended"),
        (FINISHED, "stalled for 45 s in or after its last step, and then finished"),
    ],
)
def test_past_hang_states_its_length_and_outcome(outcome: str, told: str) -> None:
    closed = close_finding(hang(), lasted_s=45.0, outcome=outcome)
    assert closed.sentence == f"Rank 1 was stalled. The run {told}."


@pytest.mark.parametrize("cause", ["busy_rank", "data_wait"])
def test_past_pause_is_no_hang(cause: str) -> None:
    pause = msgspec.structs.replace(hang(), cause=cause)
    closed = close_finding(pause, lasted_s=45.0, outcome=WENT_ON)
    assert closed.sentence == "Rank 1 was stalled. The run paused in step 31 for 45 s, and then went on."


def test_hang_before_any_step_names_none() -> None:
    assert close_finding(hang(None), outcome=ENDED).sentence == "Rank 1 was stalled. The run hung, until it ended."
    assert close_finding(hang(None), outcome=FINISHED).sentence.endswith("The run stalled, and then finished.")


def test_long_work_before_the_finish_asks_for_nothing() -> None:
    closed = close_finding(hang(), outcome=FINISHED)
    assert (closed.severity, closed.suggestion) == ("info", "")
    assert close_finding(hang(), outcome=ENDED).severity == "critical"


def test_finding_of_an_earlier_version_keeps_its_words() -> None:
    old = Finding(kind="straggler", cause="host_cpu", sentence="Rank 2 is slow.")
    assert close_finding(old, lasted_s=3.0).sentence == "Rank 2 is slow."


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (
            "it runs 120 operators a step where its peers run 100, 3 ms of it in run",
            "it ran 120 operators a step where its peers ran 100, 3 ms of it in run",
        ),
        (
            "its training thread is blocked or waits for a CPU core",
            "its training thread was blocked or waited for a CPU core",
        ),
        (
            "its GPU is idle 4 ms longer and its training thread is on no CPU: it waits for what is not seen",
            "its GPU was idle 4 ms longer and its training thread was on no CPU: it waited for what was not seen",
        ),
        (
            "its GPU is idle 4 ms a step longer, and the CPU time of its training thread is not known",
            "its GPU was idle 4 ms a step longer, and the CPU time of its training thread was not known",
        ),
        ("no known cause explains it", "no known cause explained it"),
        ("its GPU throttles (SW thermal)", "its GPU throttled (SW thermal)"),
        ("nothing to change here", "nothing to change here"),
    ],
)
def test_reason_is_put_in_the_past_but_for_the_name_of_a_phase(now: str, then: str) -> None:
    assert put_in_past(now) == then


def test_no_past_form_is_a_present_one() -> None:
    assert PAST_FORMS.keys().isdisjoint(PAST_FORMS.values())
