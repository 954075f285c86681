"""Orders of one capture: which steps, what is asked again, and how each rank ends."""

import hashlib

from rankscope.collector.captures.orders import (
    AskedRank,
    DiscardFile,
    Effect,
    FinishFile,
    Orders,
    Pace,
    Send,
    Terms,
    WriteBytes,
)
from rankscope.measure.messages import (
    CAPTURE_PART_BYTES_MAX,
    CaptureOrder,
    CapturePart,
    CapturePartWanted,
    CaptureState,
)

PART = CAPTURE_PART_BYTES_MAX
PACE = Pace(last_step=100, step_ns=500_000_000, interval_ns=1_000_000_000)
"""Two seconds for two reports and one for the way are 6 steps of 0.5 s, and 2 more: the first step is 108."""


def begin(ranks: int = 2, bytes_max: int = 10 * PART) -> Orders:
    asked = tuple(AskedRank(number, "node-a", f"boot-{number}") for number in range(ranks))
    return Orders.begin(Terms(id="c1", steps=5, bytes_max=bytes_max), asked, PACE, 0.0)


def orders_in(effects: list[Effect]) -> list[CaptureOrder]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, CaptureOrder)]


def wanted_in(effects: list[Effect]) -> list[int]:
    return [
        one.message.offset for one in effects if isinstance(one, Send) and isinstance(one.message, CapturePartWanted)
    ]


def say(state: str, *, capture: str = "c1", next_step: int = 101, size: int = 5, reason: str = "") -> CaptureState:
    sha256 = hashlib.sha256(b"trace").hexdigest()
    return CaptureState(id=capture, state=state, next_step=next_step, reason=reason, size_bytes=size, sha256=sha256)


def states_of(orders: Orders) -> list[str]:
    return [one.state for one in orders.ranks]


def test_all_ranks_are_ordered_the_same_later_steps() -> None:
    found = orders_in(begin().tick(0.0, {}))
    assert [(one.id, one.first_step, one.last_step) for one in found] == [("c1", 108, 112)] * 2


def test_order_is_repeated_until_the_rank_has_ended() -> None:
    orders = begin(1)
    counts = [len(orders_in(orders.tick(now_s, {}))) for now_s in (0.0, 1.0, 2.0)]
    orders.take_state("boot-0", say("refused", reason="no"), 2.0)
    assert [*counts, len(orders_in(orders.tick(4.0, {})))] == [1, 0, 1, 0]


def test_late_rank_calls_all_off_and_doubles_the_margin() -> None:
    orders = begin()
    orders.tick(0.0, {})
    orders.take_state("boot-0", say("accepted"), 0.1)
    found = orders_in(orders.take_state("boot-1", say("refused", next_step=120), 0.2))
    over = [(one.id, one.is_over) for one in found[:2]]
    assert over == [("c1", True)] * 2
    assert [(one.id, one.first_step, one.is_over) for one in found[2:]] == [("c1-2", 120 + 2 * 8, False)] * 2


def test_rank_that_is_late_twice_is_left_out() -> None:
    orders = begin(1)
    orders.take_state("boot-0", say("refused", next_step=120), 0.2)
    orders.take_state("boot-0", say("refused", capture="c1-2", next_step=500, reason="too late"), 0.4)
    assert (states_of(orders), orders.is_over) == (["refused"], True)


def test_answer_to_an_order_that_was_called_off_is_ignored() -> None:
    orders = begin()
    orders.take_state("boot-1", say("refused", next_step=120), 0.2)
    orders.take_state("boot-0", say("written", capture="c1"), 0.3)
    assert states_of(orders) == ["asked", "asked"]


def test_refusal_of_one_rank_does_not_end_the_others() -> None:
    orders = begin()
    orders.take_state("boot-0", say("refused", reason="a profiler of the script is on"), 0.2)
    orders.take_state("boot-1", say("accepted"), 0.2)
    assert (states_of(orders), orders.ranks[0].reason) == (["refused", "accepted"], "a profiler of the script is on")


def test_rank_that_never_answers_is_given_up() -> None:
    orders = begin(1)
    orders.tick(0.0, {})
    orders.tick(29.9, {})
    waiting = states_of(orders)
    orders.tick(30.0, {})
    assert (waiting, states_of(orders)) == (["asked"], ["failed"])
    assert "earlier release" in orders.ranks[0].reason


def test_rank_whose_process_has_ended_is_given_up_sooner() -> None:
    orders = begin(1)
    orders.tick(10.0, {"boot-0": "killed"})
    assert orders.ranks[0].reason == "its process has ended (killed)"


def test_file_of_a_process_that_has_ended_is_lost_with_the_cure() -> None:
    orders = begin(1)
    orders.tick(0.0, {})
    orders.take_state("boot-0", say("written"), 1.0)
    orders.tick(10.9, {"boot-0": "finished"})
    waiting = states_of(orders)
    orders.tick(11.0, {"boot-0": "finished"})  # it was heard of last at 1 s
    assert (waiting, states_of(orders)) == (["written"], ["failed"])
    assert orders.ranks[0].reason.startswith(
        "its process has ended (finished); files that the collector has not fetched"
    )


def test_rank_that_reaches_no_step_is_given_up() -> None:
    orders = begin(1)
    now_s = 0.0
    while not orders.is_over:
        now_s += 2.0
        orders.take_state("boot-0", say("accepted"), now_s)
        orders.tick(now_s, {})
    assert now_s == 666.0  # 600 s, and ten times the 13 steps of 0.5 s, rounded up to a tick of 2 s


def test_file_is_fetched_part_by_part() -> None:
    orders = begin(1)
    size = 5 * PART + 7
    first = orders.take_state("boot-0", say("written", size=size), 1.0)
    effects = orders.take_part("boot-0", CapturePart(id="c1", offset=0, data=b"a" * PART), 1.1)
    assert wanted_in(first) == [0, PART, 2 * PART, 3 * PART]
    assert [one for one in effects if isinstance(one, WriteBytes)] == [WriteBytes(0, 0, b"a" * PART)]
    assert wanted_in(effects) == [4 * PART]


def test_part_that_does_not_come_is_asked_for_again() -> None:
    orders = begin(1)
    orders.take_state("boot-0", say("written", size=2 * PART), 1.0)
    orders.take_part("boot-0", CapturePart(id="c1", offset=0, data=b"a" * PART), 1.1)
    assert wanted_in(orders.tick(5.9, {})) == []
    assert wanted_in(orders.tick(6.0, {})) == [PART]


def test_part_that_comes_twice_counts_once() -> None:
    orders = begin(1)
    orders.take_state("boot-0", say("written", size=2 * PART), 1.0)
    part = CapturePart(id="c1", offset=0, data=b"a" * PART)
    orders.take_part("boot-0", part, 1.1)
    assert orders.take_part("boot-0", part, 1.2) == []
    assert orders.ranks[0].fetched_bytes == PART


def test_whole_file_is_finished_and_the_rank_told() -> None:
    orders = begin(1)
    orders.take_state("boot-0", say("written"), 1.0)
    effects = orders.take_part("boot-0", CapturePart(id="c1", offset=0, data=b"trace"), 1.1)
    told = orders_in(orders.note_file(0, "rank-0.gz"))
    assert effects[1] == FinishFile(0, 5, hashlib.sha256(b"trace").hexdigest())
    assert [(one.id, one.is_over) for one in told] == [("c1", True)]
    assert (states_of(orders), orders.ranks[0].file, orders.is_over) == (["fetched"], "rank-0.gz", True)


def test_file_that_is_too_large_is_refused() -> None:
    orders = begin(1, bytes_max=4)
    orders.take_state("boot-0", say("written", size=5), 1.0)
    assert "5 bytes; at most 4 of a rank" in orders.ranks[0].reason


def test_file_of_which_nothing_arrives_is_given_up() -> None:
    orders = begin(1)
    orders.take_state("boot-0", say("written"), 1.0)
    effects = orders.tick(61.0, {})
    assert effects[0] == DiscardFile(0)
    assert orders.ranks[0].reason == "nothing of its file has arrived for 60 s"


def test_four_files_are_fetched_at_a_time() -> None:
    orders = begin(6)
    for number in range(6):
        orders.take_state(f"boot-{number}", say("written"), 1.0)
    orders.take_part("boot-0", CapturePart(id="c1", offset=0, data=b"trace"), 1.1)
    assert {one.boot_id for one in orders.tick(6.1, {}) if isinstance(one, Send)} == {f"boot-{n}" for n in range(1, 5)}


def test_file_that_cannot_be_read_is_lost() -> None:
    orders = begin(1)
    orders.take_state("boot-0", say("written"), 1.0)
    orders.take_part("boot-0", CapturePart(id="c1", offset=0, problem="No such file"), 1.1)
    assert orders.ranks[0].reason == "its file could not be read: No such file"


def test_restarted_collector_goes_on_with_the_same_steps() -> None:
    first = begin()
    first.take_state("boot-1", say("refused", next_step=120), 0.2)
    again = Orders(first.progress, 1_000.0)
    assert [(one.id, one.first_step) for one in orders_in(again.tick(1_000.0, {}))] == [("c1-2", 136)] * 2
