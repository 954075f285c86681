"""Check that untrusted text is shown as one line without control characters."""

import pytest

from rankscope.measure.text import to_line


def test_plain_text_stays_as_it_is() -> None:
    assert to_line("rank 3 is nöt in the world") == "rank 3 is nöt in the world"


@pytest.mark.parametrize(
    ("sign", "shown"), [("\n", "\\n"), ("\x1b", "\\x1b"), ("\u202e", "\\u202e"), ("\x00", "\\x00"), ("\x9b", "\\x9b")]
)
def test_sign_that_steers_a_terminal_is_spelled_out(sign: str, shown: str) -> None:
    assert to_line(f"a{sign}b") == f"a{shown}b"


def test_line_is_never_longer_than_allowed() -> None:
    assert to_line("x" * 8, 8) == "x" * 8
    assert to_line("x" * 9, 8) == "xxxxx..."
    assert len(to_line("\n" * 9, 8)) == 8
