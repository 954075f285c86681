"""The source line of a finding, in the texts about it."""

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.sampled_lines import LineCost, SampledLines
from rankscope.collector.reports.status_text import render_one_rank, render_status
from rankscope.collector.reports.summary import summarize
from rankscope.collector.runs.run_status import build_status
from tests.unit.collector.runs.run_stories import Story

SAID = "146.0 ms per step in time.sleep, called at train.py:104 (augment); its peer rank 0: none."
SLEEPS = LineCost(line="train.py:104 (augment)", ns=146e6, peer_ns=0.0, call="time.sleep", ranks=(1,))
LINES = SampledLines(
    sentence=SAID, rank=1, peer=0, steps=32, first_step=96, last_step=127, is_named=True, lines=(SLEEPS,)
)
FINDING = Finding(kind="straggler", number=1, ranks=(1,), cause="unseen_wait", sentence="Rank 1 is slow.", lines=LINES)
RUN = msgspec.structs.replace(Story(2).join().train(3).snapshot(), open_findings=(FINDING,), findings=(FINDING,))


def test_status_has_the_line_below_the_verdict() -> None:
    assert render_status(build_status(RUN, 2)).splitlines()[1] == f"  line: {SAID}"


def test_status_of_a_rank_has_the_lines_of_both() -> None:
    lines = render_one_rank(RUN, RUN.ranks[1], None).splitlines()
    assert "      rank 1     rank 0  mean of a step, of 32 from 96 to 127" in lines
    assert "    146.0 ms       0 ns  in time.sleep, called at train.py:104 (augment)" in lines


def test_line_without_a_peer_has_no_table() -> None:
    alone = msgspec.structs.replace(FINDING, lines=msgspec.structs.replace(LINES, peer=None))
    run = msgspec.structs.replace(RUN, open_findings=(alone,))
    assert not any("mean of a step" in line for line in render_one_rank(run, run.ranks[1], None).splitlines())


def test_summary_ends_with_the_line_of_the_verdict() -> None:
    assert summarize(RUN).splitlines()[-1] == f"line: {SAID}"
