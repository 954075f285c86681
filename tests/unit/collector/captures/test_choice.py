"""Which ranks a capture is of, and why there is none."""

import pytest

from rankscope.collector.captures.capture import Around, CaptureRefusal, CaptureRequest
from rankscope.collector.captures.choice import choose_beside, choose_ranks
from rankscope.collector.runs.run import RunState
from rankscope.collector.steps.rank_medians import RankMedians
from tests.unit.collector.runs.run_stories import Story

RANKS_MAX = 64
FORMS = """a list of rank numbers such as [3, 7], {"around": 3}, 'slowest' or 'all'"""


def request(ranks: tuple[int, ...] | Around | str = "slowest", **other: object) -> CaptureRequest:
    return CaptureRequest(run="story", ranks=ranks, **other)  # type: ignore[arg-type]


def numbers(run: RunState, wanted: CaptureRequest, ranks_max: int = RANKS_MAX) -> tuple[int, ...]:
    found = choose_ranks(wanted, run, ranks_max)
    assert not isinstance(found, CaptureRefusal)
    return tuple(one.rank for one in found[0])


def reason(run: RunState, wanted: CaptureRequest, ranks_max: int = RANKS_MAX) -> str:
    found = choose_ranks(wanted, run, ranks_max)
    assert isinstance(found, CaptureRefusal)
    assert found.status == 422
    return found.error


def test_slowest_rank_comes_with_a_peer_and_a_neighbor() -> None:
    medians = RankMedians((0, 1, 2, 3, 4), {"own_ns_median": (6.0, 7.0, 5.0, 20.0, 8.0)})
    nodes = {0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}
    # The peers of 3 by own time are 2, 0, 1, 4: 0 is the lower middle. Of 2 and 4, as near, 2 is lower.
    assert choose_beside(3, medians, [(0, 1, 2, 3, 4)], nodes) == (0, 2, 3)


def test_rank_alone_is_captured_alone() -> None:
    assert choose_beside(0, RankMedians(), [], {0: "a"}) == (0,)


def test_ranks_are_those_that_are_named() -> None:
    assert numbers(Story(4).join().train(3).run, request((3, 1))) == (1, 3)


def test_rank_that_is_asked_for_comes_with_a_peer_and_a_neighbor() -> None:
    # All work alike on one node: of the peers 0, 2 and 3 of rank 1 the middle is 2, and 0 is the nearest other rank.
    assert numbers(Story(4).join().train(3).run, request(Around(1))) == (0, 1, 2)


def test_all_ranks_are_those_that_report() -> None:
    assert numbers(Story(3).join().train(3).say_goodbye(1).run, request("all")) == (0, 2)


def test_steps_are_chosen_after_the_last_known_one() -> None:
    found = choose_ranks(request("all"), Story(2).join().train(3).run, RANKS_MAX)
    assert not isinstance(found, CaptureRefusal)
    assert found[1].last_step == 2  # the steps 0, 1 and 2
    assert found[1].interval_ns == 1_000_000_000


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (request((9,)), "rank 9 does not report; the run has 4 ranks"),
        (request(Around(9)), "rank 9 does not report; the run has 4 ranks"),
        (request("fastest"), f"ranks is 'fastest'; it must be {FORMS}"),
        (request(()), f"ranks is (); it must be {FORMS}"),
        (request("all", steps=101), "steps is 101; it must be from 1 to 100"),
        (request("all", options=("colors",)), "there is no option colors; there are"),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(wanted: CaptureRequest, expected: str) -> None:
    assert expected in reason(Story(4).join().train(3).run, wanted)


def test_too_many_ranks_are_refused() -> None:
    text = reason(Story(4).join().train(3).run, request("all"), ranks_max=3)
    assert text == "4 ranks are asked for; capture_ranks_max is 3. Name fewer, or 'slowest'"


def test_run_without_steps_is_refused() -> None:
    assert reason(Story(2).join().run, request()) == "no step has been reported yet; ask again after the first steps"


def test_run_that_has_ended_is_refused() -> None:
    ended = Story(1).join().train(3).say_goodbye(0).run
    assert reason(ended, request()) == "no rank of the run 'story' reports; a capture needs a running one"
