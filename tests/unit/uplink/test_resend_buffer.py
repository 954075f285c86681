"""Tests of ResendBuffer: frames held, dropped and counted."""

import pytest

from rankscope.uplink.resend_buffer import ResendBuffer


def filled(count: int, frames_max: int = 100, bytes_max: int = 1_000_000) -> ResendBuffer:
    """A buffer after frames 1 to `count`, each of 10 bytes with 3 steps."""
    buffer = ResendBuffer(frames_max, bytes_max)
    for sequence in range(1, count + 1):
        buffer.push(sequence, bytes([sequence]) * 10, 3)
    return buffer


def test_empty_buffer_has_the_next_number_as_first() -> None:
    buffer = ResendBuffer(4, 100)
    assert (buffer.first_sequence, buffer.last_sequence, len(buffer), buffer.held_bytes) == (1, 0, 0, 0)


def test_pushed_frames_are_held_in_order() -> None:
    buffer = filled(3)
    assert [held.sequence for held in buffer.frames_from(1, 10)] == [1, 2, 3]
    assert (buffer.first_sequence, buffer.last_sequence, buffer.held_bytes) == (1, 3, 30)


def test_push_with_a_gap_is_refused() -> None:
    buffer = filled(2)
    with pytest.raises(ValueError, match="frame 4 was pushed after frame 2; numbers must follow without a gap"):
        buffer.push(4, b"x", 0)
    assert (len(buffer), buffer.last_sequence, buffer.held_bytes) == (2, 2, 20)


@pytest.mark.parametrize(("frames_max", "bytes_max"), [(0, 10), (10, 0)])
def test_buffer_needs_positive_bounds(frames_max: int, bytes_max: int) -> None:
    with pytest.raises(ValueError, match=f"frames_max is {frames_max} and bytes_max is {bytes_max}; the smallest"):
        ResendBuffer(frames_max, bytes_max)


def test_oldest_is_dropped_and_counted_above_frames_max() -> None:
    buffer = filled(6, frames_max=4)
    assert (buffer.first_sequence, len(buffer)) == (3, 4)
    assert (buffer.reports_dropped, buffer.steps_dropped) == (2, 6)  # frames 1 and 2, 3 steps each


def test_beyond_bytes_max_as_many_fall_out_as_are_needed() -> None:
    buffer = filled(3, bytes_max=30)
    buffer.push(4, b"x" * 15, 3)  # 45 bytes: 1 and 2 must go, for 25 remain
    assert (buffer.first_sequence, buffer.held_bytes, buffer.reports_dropped) == (3, 25, 2)


def test_newest_frame_is_kept_above_bytes_max() -> None:
    buffer = filled(3, bytes_max=30)
    buffer.push(4, b"x" * 31, 3)
    assert (buffer.first_sequence, buffer.held_bytes, buffer.reports_dropped) == (4, 31, 3)


def test_acknowledgement_releases_up_to_its_number() -> None:
    buffer = filled(5)
    assert buffer.acknowledge(3) == 3
    assert (buffer.first_sequence, len(buffer), buffer.held_bytes) == (4, 2, 20)


def test_acknowledgement_of_released_frames_has_no_effect() -> None:
    buffer = filled(5)
    buffer.acknowledge(3)
    assert (buffer.acknowledge(3), buffer.acknowledge(0), len(buffer)) == (0, 0, 2)


def test_what_was_acknowledged_is_not_counted_as_dropped() -> None:
    buffer = filled(5)
    buffer.acknowledge(5)
    assert (buffer.reports_dropped, buffer.steps_dropped, buffer.first_sequence) == (0, 0, 6)


def test_frames_are_given_from_the_number_asked_for() -> None:
    buffer = filled(6)
    assert [held.sequence for held in buffer.frames_from(3, 2)] == [3, 4]


def test_frames_start_at_the_oldest_if_the_number_is_gone() -> None:
    buffer = filled(6, frames_max=3)
    assert [held.sequence for held in buffer.frames_from(1, 2)] == [4, 5]


@pytest.mark.parametrize(("sequence", "count_max"), [(7, 5), (1, 0), (1, -1)])
def test_no_frames_beyond_the_newest(sequence: int, count_max: int) -> None:
    assert filled(6).frames_from(sequence, count_max) == ()
