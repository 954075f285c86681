"""Tests of classifying how a rank ended."""

import signal

import pytest

from rankscope.agent.sidecar.endings import EndEvidence, classify_ending
from rankscope.agent.sidecar.exit_status import ExitStatus
from rankscope.measure.messages import END_REASONS

NOTHING = EndEvidence(oom_kills=0, oom_place="cgroup /job")


def by(number: int, *, core_dumped: bool = False) -> ExitStatus:
    return ExitStatus(None, number, core_dumped)


def code(number: int) -> ExitStatus:
    return ExitStatus(number, None, core_dumped=False)


@pytest.mark.parametrize(
    ("status", "evidence", "reason", "detail"),
    [
        (code(0), NOTHING, "finished", ""),
        (code(3), NOTHING, "failed", "exit code 3"),
        (by(signal.SIGINT), NOTHING, "interrupted", "SIGINT"),
        (
            by(signal.SIGTERM), NOTHING, "terminated",
            "SIGTERM, as launchers send it to the other ranks when one has failed",
        ),
        (
            by(signal.SIGHUP), NOTHING, "terminated",
            "SIGHUP, as launchers send it to the other ranks when one has failed",
        ),
        (by(signal.SIGKILL), NOTHING, "killed", "SIGKILL; the OOM killer counted no victim in cgroup /job"),
        (
            by(signal.SIGKILL), EndEvidence(), "killed",
            "SIGKILL; whether by the OOM killer is unknown, as its victims are not counted",
        ),
        (
            by(signal.SIGKILL), EndEvidence(oom_kills=2, oom_place="cgroup /job"), "out_of_memory",
            "SIGKILL while the OOM killer counted 2 victims in cgroup /job",
        ),
        (by(signal.SIGSEGV), NOTHING, "crashed", "SIGSEGV"),
        (by(signal.SIGBUS, core_dumped=True), NOTHING, "crashed", "SIGBUS, core dumped"),
        (by(signal.SIGABRT), NOTHING, "crashed", "SIGABRT"),
        (
            by(signal.SIGABRT), EndEvidence(oom_kills=0, overdue=True), "collective_timeout",
            "SIGABRT once a pending collective had passed its timeout",
        ),
        (by(signal.SIGABRT), EndEvidence(stalled=True), "crashed", "SIGABRT; it was stalled"),
        (
            by(signal.SIGTERM), EndEvidence(stalled=True, frozen=True), "terminated",
            (
                "SIGTERM, as launchers send it to the other ranks when one has failed; its agent had written no "
                "heartbeat for a long time"
            ),
        ),
        (by(63), NOTHING, "crashed", "signal 63"),
        (None, NOTHING, "exit_unknown", "its exit status could not be read"),
        (
            None, EndEvidence(stalled=True), "exit_unknown",
            "its exit status could not be read; it was stalled",
        ),
        (None, EndEvidence(crashed=True), "crashed", "by a fatal signal; its exit status could not be read"),
        (
            None, EndEvidence(oom_kills=1, oom_place="cgroup /job"), "out_of_memory",
            "the OOM killer counted 1 victim in cgroup /job; its exit status could not be read",
        ),
    ],
)  # fmt: skip
def test_an_end_has_its_reason_and_its_sentence(
    status: ExitStatus | None, evidence: EndEvidence, reason: str, detail: str
) -> None:
    assert tuple(classify_ending(status, evidence)) == (reason, detail)
    assert reason in END_REASONS
