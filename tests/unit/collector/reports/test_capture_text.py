"""Words on captures that were ordered."""

import shlex

from msgspec.structs import replace

from rankscope.collector.captures.capture import Capture, CaptureFile, RankCapture
from rankscope.collector.reports.capture_text import describe_change, describe_end, describe_link, describe_order

ORDERED = Capture(
    id="c1", run="bert", run_id="bert@1", state="ordered", asked_wall_s=5.0, changed_wall_s=5.0,
    first_step=501, last_step=505, ranks=tuple(RankCapture(rank=rank) for rank in (3, 4, 5, 9)),
)  # fmt: skip


def with_pauses(capture: Capture, expected_s: list[float | None], paused_s: list[float | None]) -> Capture:
    """The capture with what its first ranks have said about its cost."""
    ranks = tuple(
        RankCapture(rank=index, expected_pause_s=expected, pause_s=paused)
        for index, (expected, paused) in enumerate(zip(expected_s, paused_s, strict=True))
    )
    return replace(capture, ranks=ranks)


def test_order_is_named_with_its_ranks_and_steps() -> None:
    assert describe_order(ORDERED) == "capture c1 of bert: ranks 3-5, 9, steps 501-505"
    one = replace(ORDERED, ranks=(RankCapture(rank=0),), last_step=501)
    assert describe_order(one) == "capture c1 of bert: rank 0, step 501"
    assert describe_order(replace(one, first_step=None)) == "capture c1 of bert: rank 0, steps not known yet"


def test_names_cannot_move_the_cursor() -> None:
    assert describe_order(replace(ORDERED, run="a\x1b[2J")).startswith("capture c1 of a\\x1b[2J: ")
    assert describe_change(ORDERED, replace(ORDERED, state="new\x1b")) == ["new\\x1b"]
    failed = replace(ORDERED, state="failed", problem="a\nb", verdict="c\x1bd\ne")
    assert describe_end(failed) == ["failed: a\\nb", "c\\x1bd", "e"]


def test_nothing_new_is_no_line() -> None:
    assert describe_change(ORDERED, ORDERED) == []


def test_each_change_of_state_is_a_line() -> None:
    lines = [
        describe_change(ORDERED, replace(ORDERED, state=state)) for state in ("recording", "fetching", "analyzing")
    ]
    assert lines == [
        ["recording: the ranks wait for these steps, record them and write their files"],
        ["fetching: the files are on their way to the collector"],
        ["analyzing: the collector analyses the files"],
    ]
    back = describe_change(replace(ORDERED, state="recording"), ORDERED)
    assert back == ["ordered: the ranks are being told the steps"]


def test_longest_expected_pause_is_told_when_it_is_known() -> None:
    first = with_pauses(ORDERED, [0.25, None], [None, None])
    second = with_pauses(ORDERED, [0.25, 1.5], [None, None])
    assert describe_change(ORDERED, first) == ["it is expected to stop training for 250.0 ms"]
    assert describe_change(first, second) == ["it is expected to stop training for 1.5 s"]
    assert describe_change(second, first) == []


def test_expected_pause_of_zero_is_told() -> None:
    zero = with_pauses(ORDERED, [0.0], [None])
    assert describe_change(ORDERED, zero) == ["it is expected to stop training for 0 ns"]


def test_other_steps_are_told() -> None:
    later = replace(ORDERED, first_step=601, last_step=605)
    assert describe_change(ORDERED, later) == ["ordered once more: steps 601-605"]


def test_end_has_the_longest_pause_and_the_verdict() -> None:
    complete = replace(
        with_pauses(ORDERED, [0.25, 0.25], [0.125, 0.5]), state="complete", verdict="rank 3 is slow\nby 12 %"
    )
    assert describe_end(complete) == [
        "complete",
        "it has stopped training for 500.0 ms",
        "rank 3 is slow",
        "by 12 %",
    ]


def test_complete_capture_without_a_measured_pause_says_so() -> None:
    complete = replace(ORDERED, state="complete", problem="rank 9: it is late")
    assert describe_end(complete) == [
        "complete, but rank 9: it is late",
        "for how long it has stopped training is not known",
    ]


def test_capture_that_is_too_costly_has_its_cure() -> None:
    refused = replace(ORDERED, state="failed", problem="rank 3: about 3 s, and capture_pause_s_max is 2 s")
    command = "rankscope capture bert --ranks 3,4,5,9 --steps 5 --force"
    assert describe_end(refused) == [
        f"failed: rank 3: about 3 s, and capture_pause_s_max is 2 s. To take it all the same: {command}"
    ]


def test_command_of_a_too_costly_capture_can_be_pasted() -> None:
    refused = replace(
        ORDERED, run="llama 7b; ls", state="failed", problem="capture_pause_s_max", options=("stacks", "memory"),
        first_step=None, ranks=ORDERED.ranks[:1],
    )  # fmt: skip
    (line,) = describe_end(refused)
    command = line.partition("all the same: ")[2]
    assert shlex.split(command) == [
        "rankscope", "capture", "llama 7b; ls", "--ranks", "3", "--stacks", "--memory", "--force"
    ]  # fmt: skip


def test_link_leads_to_the_report_or_says_why_there_is_none() -> None:
    done = replace(ORDERED, state="complete", files=(CaptureFile("report.html", 1),), problem="rank 3: too late")
    assert describe_link(done, "/store/c1/") == "capture c1: complete, /store/c1/report.html"
    assert describe_link(replace(done, files=()), "/store/c1/") == "capture c1: complete: rank 3: too late"
    assert describe_link(ORDERED, "/store/c1/") == "capture c1: ordered"
