"""Partial successes of OTLP, read from the bytes of an answer."""

import pytest

from rankscope.collector.otlp.partial_success import Partial, parse_partial


@pytest.mark.parametrize(
    ("body", "partial"),
    [
        (b"", Partial()),
        # partial_success is field 1 of the answer; in it the count is field 1, a varint, and the text field 2.
        (b"\x0a\x02\x08\x07", Partial(7, "")),
        (b"\x0a\x05\x08\x07\x12\x01a", Partial(7, "a")),
        (b"\x0a\x03\x12\x01a", Partial(0, "a")),
        (b"\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Partial()),  # -1
        (b"\x0a\x05\x08\x07\x12", Partial()),  # cut off
        (b"<html>not found</html>", Partial()),
        (b"{}", Partial()),
    ],
)
def test_answer_says_how_much_was_left_out(body: bytes, partial: Partial) -> None:
    assert parse_partial(body) == partial
