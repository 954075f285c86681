"""What a finding says, written of its fields: open, closed, and kept by an earlier version."""

import re

import msgspec
import pytest

from rankscope.collector.detect.finding import (
    FINISHED,
    WENT_ON,
    Finding,
    close_finding,
    order_findings,
    write_whole_cost,
)

MS = 1_000_000
SLOW = Finding(
    kind="straggler", ranks=(2,), node="node-7", cause="data_loading", what="than its 3 peers", slowdown_ratio=3.39,
    why="137.0 ms more per step waiting for its data loader", since_step=60, since_step_min=58, since_step_max=62,
    evidence={"own_ns": 195.0 * MS, "peers_own_ns": 57.5 * MS}, run_slowdown_ratio=3.25, world_size=4,
)  # fmt: skip
HANG = Finding(
    kind="hang", ranks=(1,), cause="missing_rank", what="rank 1 (node-a) stalled at train.py:74 (main)",
    why="2 ranks waiting for it in all_reduce 8", since_step=7, evidence={"stalled_ns": 40e9}, since_wall_s=50_520.0,
)  # fmt: skip


def test_open_finding_says_who_how_much_why_and_what_it_costs() -> None:
    assert SLOW.headline == "Rank 2 (node-7): 3.4x slower than its 3 peers since step 60"
    assert SLOW.figures == "Own time 195.0 ms per step, peers 57.5 ms"
    assert SLOW.cost == "run 3.2x slower, 2.8 of 4 ranks wasted"
    assert SLOW.sentence == (
        f"{SLOW.headline}. {SLOW.figures}. Cause data_loading: 137.0 ms more per step waiting for its data loader. "
        f"Cost: {SLOW.cost}."
    )


def test_begin_has_its_time_of_day_and_its_range_if_wide() -> None:
    timed = msgspec.structs.replace(SLOW, since_wall_s=50_520.0)
    assert timed.headline.endswith(" since step 60 (1970-01-01 14:02 UTC)")
    wide = msgspec.structs.replace(timed, since_step_min=43)
    assert wide.headline.endswith(" since about step 60 (43-62; 1970-01-01 14:02 UTC)")


@pytest.mark.parametrize(
    ("closing", "when"),
    [
        ({"until_step": 159, "lasted_s": 35.0}, ", steps 60-159 (35 s)"),
        ({"until_step": 60, "lasted_s": 3.0}, ", step 60 (3 s)"),
        ({"until_step": 59, "lasted_s": 3.0}, ", from step 60 on (3 s)"),
        ({"until_step": 159}, ", steps 60-159"),
    ],
)
def test_closed_finding_has_its_period_in_place_of_its_begin(closing: dict[str, float], when: str) -> None:
    closed = close_finding(SLOW, **closing)  # type: ignore[arg-type]
    assert closed.headline == f"Rank 2 (node-7): 3.4x slower than its 3 peers{when}"
    assert (closed.figures, closed.why, closed.cost) == (SLOW.figures, SLOW.why, SLOW.cost)


def test_closed_finding_with_an_unsure_begin_has_all_its_period() -> None:
    wide = msgspec.structs.replace(SLOW, since_step_min=43, since_wall_s=50_520.0)
    closed = close_finding(wide, until_step=159, until_wall_s=50_600.0, lasted_s=80.0)
    assert closed.headline.endswith(", steps 60-159 (1.3 min; 1970-01-01 14:02-14:03 UTC; began at 43-62)")
    short = close_finding(wide, until_step=70, until_wall_s=50_525.0, lasted_s=5.0)
    assert short.headline.endswith(", steps 60-70 (5 s; 1970-01-01 14:02 UTC; began at 43-62)")


def test_begin_before_the_first_judged_step_is_said() -> None:
    older = msgspec.structs.replace(SLOW, since_step_min=None, since_step_max=60)
    assert older.headline.endswith(" than its 3 peers since step 60 or before")
    assert older.is_older
    closed = close_finding(older, until_step=159, lasted_s=35.0)
    assert closed.headline.endswith(" than its 3 peers, steps 60-159 (35 s; began then or before)")


def test_nobody_asks_for_the_few_steps_before_the_first() -> None:
    first = msgspec.structs.replace(SLOW, since_step=3, since_step_min=None, since_step_max=3)
    assert first.headline.endswith(" than its 3 peers since step 3")


def test_closed_finding_without_a_begin_has_its_end() -> None:
    closed = close_finding(msgspec.structs.replace(SLOW, since_step=None), until_step=80, lasted_s=9.0)
    assert closed.headline.endswith(" than its 3 peers, until step 80 (9 s)")


def test_ratio_is_that_of_the_slowest_of_several_ranks() -> None:
    several = msgspec.structs.replace(SLOW, ranks=(2, 3), nodes=("n1",), who="node n1 (ranks 2-3)")
    assert several.headline.startswith("Node n1 (ranks 2-3): up to 3.4x slower than")


def test_kind_without_a_subject_says_what_is_the_case() -> None:
    bound = Finding(kind="data_bound", cause="data_bound", what="ranks waiting 20 % of the time,", since_step=3)
    assert bound.headline == "Ranks waiting 20 % of the time, since step 3"
    assert close_finding(bound, until_step=9).headline == "Ranks waiting 20 % of the time, steps 3-9"


def test_hang_says_how_long_it_has_lasted_and_what_followed() -> None:
    where = "rank 1 (node-a) stalled at train.py:74 (main)"
    assert HANG.headline == f"Hang in step 7 for 40.0 s (since 1970-01-01 14:02 UTC): {where}"
    went_on = close_finding(HANG, until_wall_s=50_600.0, lasted_s=80.0, outcome=WENT_ON)
    assert went_on.headline == f"Hang in step 7 for 1.3 min (1970-01-01 14:02-14:03 UTC), then the run went on: {where}"
    finished = close_finding(went_on, lasted_s=80.0, outcome=FINISHED)
    assert (
        finished.headline
        == f"Stall in or after the last step for 1.3 min (since 1970-01-01 14:02 UTC), then the run finished: {where}"
    )
    assert (finished.severity, finished.suggestion) == ("info", "")
    pause = msgspec.structs.replace(HANG, cause="data_wait", since_step=None, since_wall_s=None, evidence={})
    assert pause.headline == f"Pause: {where}"


@pytest.mark.parametrize(("ratio", "cost"), [(1.0099, ""), (1.01, "run 1.01x slower, 0.0 of 4 ranks wasted")])
def test_cost_below_one_per_cent_is_not_worth_saying(ratio: float, cost: str) -> None:
    assert msgspec.structs.replace(SLOW, run_slowdown_ratio=ratio).cost == cost


def test_cost_of_several_is_said_to_be_so() -> None:
    assert "Cost (with rank 9): run 3.2x slower" in msgspec.structs.replace(SLOW, cost_of="rank 9").sentence
    assert msgspec.structs.replace(SLOW, world_size=0).cost == "run 3.2x slower"


def test_whole_cost_has_what_was_lost() -> None:
    lost = msgspec.structs.replace(SLOW, lost_rank_seconds=90.0)
    assert write_whole_cost(lost) == f"{SLOW.cost}; 90 rank-seconds so far"
    assert write_whole_cost(close_finding(lost, lasted_s=9.0)) == f"{SLOW.cost}; 90 rank-seconds in all"


def test_more_tokens_and_another_own_time_are_in_the_figures() -> None:
    of_phases = msgspec.structs.replace(
        SLOW, details={"own time": "in forward"}, evidence={**SLOW.evidence, "more_tokens_ratio": 1.5}
    )
    assert of_phases.figures == (
        "Own time in forward 195.0 ms per step, peers 57.5 ms (scaled up for 1.50 times as many tokens)"
    )


def test_unknown_cause_is_not_named_and_one_without_a_reason_is() -> None:
    unknown = msgspec.structs.replace(SLOW, cause="unattributed", why="no known cause, 9.0 ms of it in forward")
    assert ". No known cause, 9.0 ms of it in forward. " in unknown.sentence
    assert ". Cause data_loading. " in msgspec.structs.replace(SLOW, why="").sentence


def test_what_comes_and_goes_says_so() -> None:
    assert msgspec.structs.replace(SLOW, recurs=True).sentence.endswith(". Comes and goes.")
    paused = msgspec.structs.replace(SLOW, recurs=True, is_paused=True)
    assert paused.sentence.endswith("Comes and goes. Not slow at present; closed after 5 minutes without slowness.")


def test_finding_of_an_earlier_version_is_read_as_it_was() -> None:
    kept = (
        b'{"kind": "straggler", "cause": "host_cpu", "sentence": "Rank 2 was slow.", "past": "Rank 2 was slow{when}."}'
    )
    found = msgspec.json.decode(kept, type=Finding)
    assert (found.sentence, found.headline, found.what) == ("Rank 2 was slow.", "Rank 2 was slow.", "")
    assert close_finding(found, until_step=9, lasted_s=3.0).sentence == "Rank 2 was slow."


def test_words_follow_the_fields_through_a_store() -> None:
    stale = {**msgspec.to_builtins(SLOW), "headline": "Rank 2: 9.9x slower", "sentence": "Rank 2: 9.9x slower."}
    assert msgspec.convert(stale, Finding) == SLOW


def test_views_are_in_one_order() -> None:
    def of(number: int, severity: str, *ranks: int, lost_s: float | None = None) -> Finding:
        return Finding(
            kind="straggler", number=number, ranks=ranks, cause="", severity=severity, lost_rank_seconds=lost_s
        )

    found = [of(1, "info"), of(2, "warning", lost_s=9.0), of(3, "warning", 1, lost_s=3.0), of(4, "critical"),
             of(5, "warning", 2, lost_s=1.0), of(6, "of a later release")]  # fmt: skip
    assert [one.number for one in order_findings(found)] == [4, 3, 2, 5, 1, 6]


def test_sentences_are_short() -> None:
    for sentence in re.split(r"(?<=\.) ", f"{SLOW.sentence} {HANG.sentence}"):
        assert len(sentence.split()) <= 25
