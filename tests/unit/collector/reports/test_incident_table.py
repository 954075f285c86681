"""Tables of incidents, written by hand."""

import pytest

from rankscope.collector.incidents.incident import begin, resolve
from rankscope.collector.reports.incident_table import HEADS, count_incidents, render_incidents
from rankscope.measure.units import format_length
from tests.unit.collector.detect.findings import RUN, slow

BEGIN_S = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""
OPEN = begin(12, RUN, slow(lost_rank_seconds=9_000.0, suggestion="Look at its data loader."), BEGIN_S)
RESOLVED = resolve(
    begin(3, "gpt", slow(1, severity="info"), BEGIN_S - 60), "passed", BEGIN_S - 18, lost_rank_seconds=None
)

GOLDEN = """\
id  state     severity  since (UTC)              for  run   kind       subject  cause        cost so far
12  open      warning   2023-11-14 22:13:20  1.5 min  bert  straggler  rank 2   host_cpu  2.5 rank-hours
      Rank 2 is slow.
      cost: 2.5 rank-hours so far
      do: Look at its data loader.
 3  resolved  info      2023-11-14 22:12:20     42 s  gpt   straggler  rank 1   host_cpu               -
      Rank 1 is slow.
      resolved: passed"""


def test_incident_is_a_line_with_sentence_and_end_below() -> None:
    assert render_incidents([OPEN, RESOLVED], BEGIN_S + 90) == GOLDEN


def test_without_sentences_only_lines_are_shown() -> None:
    lines = GOLDEN.splitlines()
    assert render_incidents([OPEN, RESOLVED], BEGIN_S + 90, with_sentences=False).splitlines() == [
        lines[0], lines[1], lines[5],
    ]  # fmt: skip


def test_heads_are_shown_without_incidents() -> None:
    assert render_incidents([], 0.0).split("  ")[:2] == list(HEADS[:2])


def test_long_name_is_shortened_and_a_long_sentence_wrapped() -> None:
    incident = begin(1, "r" * 100, slow(sentence="slow " * 50), BEGIN_S)
    lines = render_incidents([incident], BEGIN_S).splitlines()
    assert "r" * 21 + "..." in lines[1]
    assert [line[:6] for line in lines[2:]] == ["      "] * 3
    assert max(map(len, lines[2:])) <= 116


def test_name_cannot_control_the_terminal() -> None:
    incident = begin(1, "a\x1b[2Jb", slow(sentence="one\x1b[1mtwo"), BEGIN_S)
    assert "\x1b" not in render_incidents([incident], BEGIN_S)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.0, "59 s"), (60.0, "1.0 min"), (3_600.0, "1.0 h"), (86_400.0, "1.0 d"), (864_000.0, "10.0 d")],
)
def test_length_is_shown_in_its_largest_unit(seconds: float, text: str) -> None:
    assert format_length(seconds) == text


def test_incidents_are_counted_in_words() -> None:
    assert count_incidents([]) == "no incident"
    assert count_incidents([RESOLVED]) == "1 incident, 0 open"
    assert count_incidents([OPEN, RESOLVED]) == "2 incidents, 1 open"
