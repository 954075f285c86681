"""How long was not read while messages may have waited. Arithmetic on moments; no clock."""

from rankscope.collector.ingest.receive_timing import WINDOW_NS, IngestStalls
from rankscope.measure.units import NS_PER_MS


def test_before_anything_was_read_there_was_no_pause() -> None:
    assert IngestStalls(0).longest_ns == 0


def test_the_longest_time_between_two_messages_that_waited_counts() -> None:
    pauses = IngestStalls(0)
    for read_ms in (5, 6, 90, 95):
        pauses.note_read(read_ms * NS_PER_MS)
    assert pauses.longest_ns == 84 * NS_PER_MS


def test_time_in_which_nothing_was_there_to_be_read_is_no_pause() -> None:
    pauses = IngestStalls(0)
    pauses.note_read(5 * NS_PER_MS)
    pauses.note_idle(900 * NS_PER_MS)
    pauses.note_read(907 * NS_PER_MS)
    assert pauses.longest_ns == 7 * NS_PER_MS


def test_a_pause_is_told_for_one_window_and_the_next() -> None:
    pauses = IngestStalls(0)
    pauses.note_read(300 * NS_PER_MS)
    pauses.roll(WINDOW_NS - 1)
    assert pauses.longest_ns == 300 * NS_PER_MS
    pauses.roll(WINDOW_NS)
    pauses.note_idle(WINDOW_NS)
    pauses.note_read(WINDOW_NS + 20 * NS_PER_MS)
    pauses.roll(2 * WINDOW_NS - 1)
    assert pauses.longest_ns == 300 * NS_PER_MS
    pauses.roll(2 * WINDOW_NS)
    assert pauses.longest_ns == 20 * NS_PER_MS


def test_what_was_long_ago_is_told_no_more_however_seldom_one_looks() -> None:
    pauses = IngestStalls(0)
    pauses.note_read(300 * NS_PER_MS)
    pauses.roll(5 * WINDOW_NS)
    assert pauses.longest_ns == 0
