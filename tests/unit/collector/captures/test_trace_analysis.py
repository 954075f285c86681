"""The child processes that read the traces of a capture: their limits, and what is said where they fail."""

import os
import resource
from pathlib import Path

import psutil
import pytest

from rankscope.collector.captures.trace_analysis import MEMORY_BYTES_MAX, NICENESS, TraceAnalysis, read_verdict


def test_child_has_limits_and_low_priority(tmp_path: Path) -> None:
    analysis = TraceAnalysis(tmp_path, ["rank-0.pt.trace.json.gz"])
    assert not analysis.poll()
    assert analysis.pid is not None
    memory = resource.prlimit(analysis.pid, resource.RLIMIT_AS)
    niceness = os.getpriority(os.PRIO_PROCESS, analysis.pid)
    analysis.close()
    assert (memory, niceness) == ((MEMORY_BYTES_MAX, MEMORY_BYTES_MAX), NICENESS)


def test_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    analysis = TraceAnalysis(tmp_path, ["rank-0.pt.trace.json.gz"], child_s_max=0.0)
    analysis.poll()
    pid = analysis.pid
    assert pid is not None
    assert analysis.poll()
    assert analysis.problem == "analyze took longer than 0 s"
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("2 ranks of 4, 5 steps\n\nNOT JUDGED\n", "2 ranks of 4, 5 steps"),
        ("2 ranks\n[a] b: c\n[d] e: f\n[g] h: i\n[j] k: l\n", "[a] b: c\n[d] e: f\n[g] h: i"),
        ("2 ranks\n[a] b: c\n    d\n    do: e\n        f\n", "[a] b: c d"),
    ],
)
def test_verdict_is_the_first_findings_without_advice(text: str, expected: str) -> None:
    assert read_verdict(text) == expected


def test_child_that_is_ended_leaves_no_part_of_a_report(tmp_path: Path) -> None:
    analysis = TraceAnalysis(tmp_path, ["rank-0.pt.trace.json.gz"], child_s_max=0.0)
    analysis.poll()
    (tmp_path / "report.json").write_text('{"half')
    assert analysis.poll()
    assert [path.name for path in tmp_path.iterdir()] == [".errors.txt"]
