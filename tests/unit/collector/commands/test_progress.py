"""Progress of long commands, by a clock of the test."""

import io

from rankscope.collector.commands.progress import ProgressLine


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


def lines_at(out: io.StringIO, *told: tuple[float, float]) -> str:
    """Return what is written when so much of 4 files is done, each at its second."""
    now_s = 0.0
    line = ProgressLine("files", out, lambda: now_s)
    for at_s, done in told:
        now_s = at_s
        line.move(done, 4)
    line.close()
    return out.getvalue()


def test_terminal_has_one_line_which_is_removed() -> None:
    found = lines_at(Terminal(), (0.1, 0.5), (0.3, 1.0), (0.4, 1.1), (2.0, 3.8), (2.5, 4.0))
    assert [one for one in found.split("\r\x1b[K") if one] == [
        "rankscope: 25 %; 1 of 4 files, 0 s",
        "rankscope: 95 %; 3 of 4 files, 2 s",
        "rankscope: comparing; 4 of 4 files, 2 s",
    ]
    assert found.endswith("\r\x1b[K")


def test_log_has_a_line_each_time_that_twice_as_long_has_passed() -> None:
    found = lines_at(io.StringIO(), *((second, second / 100) for second in range(1, 100)))
    assert found.splitlines() == [
        "rankscope: 2 %; 0 of 4 files, 10 s",
        "rankscope: 5 %; 0 of 4 files, 20 s",
        "rankscope: 10 %; 0 of 4 files, 40 s",
        "rankscope: 20 %; 0 of 4 files, 80 s",
    ]


def test_short_command_writes_nothing_into_a_log() -> None:
    assert lines_at(io.StringIO(), (1, 1.0), (9.9, 4.0)) == ""


def test_stream_that_is_closed_ends_no_command() -> None:
    out = io.StringIO()
    line = ProgressLine("files", out, iter([0.0, 11.0]).__next__)
    out.close()
    line.move(1, 4)
    line.close()
