"""The report of a run as the training script reads it."""

import math
import subprocess
import sys

import pytest

import rankscope
from rankscope.agent.run_report import FINDINGS, NOT_MEASURED, NOT_SAID, STALE_NS, VALUES, ReceivedSummary, build_report
from rankscope.measure.messages import OpenFinding, RunSummary
from rankscope.measure.units import NS_PER_S

FINDING = OpenFinding(3, "straggler", "host_cpu", "rank 2", "rank 2 is slow", severity="critical", since_step=41)
KNOWN = RunSummary(
    slowdown_ratio=1.25, goodput_ratio=0.75, mfu=0.5, exposed_communication_ratio=0.0, data_wait_ratio=0.25,
    findings=(FINDING,), findings_left_out=2,
)  # fmt: skip


def test_report_has_what_the_collector_has_sent_and_its_age() -> None:
    report = build_report("bert", 0, ReceivedSummary(KNOWN, 1 * NS_PER_S), 3 * NS_PER_S)
    assert [report[name] for name in VALUES] == [1.25, 0.75, 0.5, 0.0, 0.25]
    assert (report["run"], report["rank"], report["age_s"], report["absent"]) == ("bert", 0, 2.0, {})
    assert report["findings"] == [
        {
            "number": 3,
            "kind": "straggler",
            "cause": "host_cpu",
            "subject": "rank 2",
            "sentence": "rank 2 is slow",
            "severity": "critical",
            "since_step": 41,
        }
    ]
    assert report["findings_left_out"] == 2


def test_what_the_collector_does_not_know_has_its_reason() -> None:
    summary = RunSummary(goodput_ratio=0.5, absent={"mfu": "rank 0: no GPU is in use"})
    report = build_report("bert", 0, ReceivedSummary(summary, 0), 0)
    assert report["goodput_ratio"] == 0.5
    assert report["absent"]["mfu"] == "rank 0: no GPU is in use"
    assert report["absent"]["slowdown_ratio"] == NOT_SAID
    assert report["findings"] == []  # known: none holds


@pytest.mark.parametrize(
    ("rank", "received", "now_ns", "why"),
    [
        (0, "the collector is not connected", 0, "the collector is not connected"),
        (3, ReceivedSummary(KNOWN, 0), 0, "the collector sends its summaries to rank 0; this is rank 3"),
        (0, ReceivedSummary(KNOWN, 0), 90 * NS_PER_S, "the last summary of the collector came 1.5 min ago"),
    ],
)
def test_without_a_summary_nothing_is_known_and_all_say_why(
    rank: int, received: ReceivedSummary | str, now_ns: int, why: str
) -> None:
    report = build_report("bert", rank, received, now_ns)
    assert [report[name] for name in (*VALUES, FINDINGS)] == [None] * 6
    assert report["absent"] == dict.fromkeys((*VALUES, FINDINGS), why)


def test_summary_counts_until_it_is_a_minute_old() -> None:
    assert build_report("bert", 0, ReceivedSummary(KNOWN, 0), STALE_NS - 1)["mfu"] == 0.5
    assert build_report("bert", 0, ReceivedSummary(KNOWN, 0), STALE_NS)["mfu"] is None


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_number_that_is_none_is_not_passed_on(number: float) -> None:
    report = build_report("bert", 0, ReceivedSummary(RunSummary(mfu=number), 0), 0)
    assert (report["mfu"], report["absent"]["mfu"]) == (None, NOT_SAID)


def test_text_of_a_collector_is_one_printable_line() -> None:
    finding = OpenFinding(1, "hang", "x", "the run", "all is\nwell\x1b[2J")
    report = build_report("bert", 0, ReceivedSummary(RunSummary(findings=(finding,)), 0), 0)
    assert report["findings"] is not None
    assert report["findings"][0]["sentence"] == "all is\\nwell\\x1b[2J"


def test_process_that_is_not_measured_says_so() -> None:
    report = rankscope.status()
    assert (report["mfu"], report["rank"], report["absent"]["mfu"]) == (None, None, NOT_MEASURED)


def test_call_is_not_hidden_by_a_folder_of_its_name() -> None:
    script = "import rankscope.agent as r, rankscope.agent.session; print(r.status()['absent']['mfu'])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500)
    assert (ended.stdout, ended.stderr) == (f"{NOT_MEASURED}\n", "")
