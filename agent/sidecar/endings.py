"""Classifies how a rank ended from its exit status and beacon. Pure.

exit code 0                                        finished
another exit code                                  failed
SIGINT                                             interrupted
SIGTERM, SIGHUP                                    terminated: launchers send these to the other ranks of a failed one
SIGKILL, and its cgroup has a new OOM victim       out_of_memory
SIGKILL otherwise                                  killed
SIGABRT, and a collective was past its timeout     collective_timeout (as NCCL's watchdog ends the process)
any other signal                                   crashed
exit status not known                              crashed, if Python's faulthandler has written stacks, and the agent
                                                   has not ended after that; out_of_memory, if its cgroup has a new OOM
                                                   victim; else exit_unknown
"""

import signal
from typing import Final, NamedTuple

from rankscope.agent.sidecar.exit_status import ExitStatus

TERMINATED: Final = frozenset({signal.SIGTERM, signal.SIGHUP})


class EndEvidence(NamedTuple):
    """The evidence about a rank that has ended, besides its exit status.

    `crashed`: a fatal signal, which the process has not survived, has made Python write the stacks. `oom_kills` is the
    result of `OomKills.claim`; `overdue`: a collective pending at the last observation is past its timeout; `frozen`:
    the agent had written no heartbeat for long.
    """

    oom_kills: int | None = None
    oom_place: str = ""
    overdue: bool = False
    stalled: bool = False
    frozen: bool = False
    crashed: bool = False


class RankEnding(NamedTuple):
    """One of END_REASONS, and a sentence for the user."""

    reason: str
    detail: str


def classify_ending(status: ExitStatus | None, evidence: EndEvidence) -> RankEnding:
    """Return how the rank ended.

    >>> classify_ending(ExitStatus(None, 9, False), EndEvidence(oom_kills=1, oom_place="cgroup /job"))
    RankEnding(reason='out_of_memory', detail='SIGKILL while the OOM killer counted 1 victim in cgroup /job')
    """
    before = _describe_before(evidence)
    if status is None:
        return _classify_unread(evidence, before)
    if status.signal is None:
        code = status.exit_code
        return RankEnding("failed" if code else "finished", f"exit code {code}{before}" if code else "")
    return _classify_signal(status.signal, status, evidence, before)


def _classify_unread(evidence: EndEvidence, before: str) -> RankEnding:
    unread = "its exit status could not be read"
    if evidence.crashed:
        return RankEnding("crashed", f"by a fatal signal; {unread}{before}")
    if evidence.oom_kills:
        return RankEnding("out_of_memory", f"{_describe_victims(evidence)}; {unread}")
    return RankEnding("exit_unknown", f"{unread}{before}")


def _classify_signal(number: int, status: ExitStatus, evidence: EndEvidence, before: str) -> RankEnding:
    name = _name(number)
    if number == signal.SIGINT:
        return RankEnding("interrupted", name)
    if number in TERMINATED:
        return RankEnding("terminated", f"{name}, as launchers send it to the other ranks when one has failed{before}")
    if number == signal.SIGKILL:
        return _classify_kill(name, evidence, before)
    if number == signal.SIGABRT and evidence.overdue:
        return RankEnding("collective_timeout", f"{name} once a pending collective had passed its timeout")
    core = ", core dumped" if status.core_dumped else ""
    return RankEnding("crashed", f"{name}{core}{before}")


def _classify_kill(name: str, evidence: EndEvidence, before: str) -> RankEnding:
    if evidence.oom_kills:
        return RankEnding("out_of_memory", f"{name} while {_describe_victims(evidence)}")
    if evidence.oom_kills is None:
        return RankEnding(
            "killed", f"{name}; whether by the OOM killer is unknown, as its victims are not counted{before}"
        )
    # No denial: a process that entered its cgroup late may have been a victim of another one's limit.
    return RankEnding("killed", f"{name}; the OOM killer counted no victim in {evidence.oom_place}{before}")


def _describe_victims(evidence: EndEvidence) -> str:
    victims = "1 victim" if evidence.oom_kills == 1 else f"{evidence.oom_kills} victims"
    return f"the OOM killer counted {victims} in {evidence.oom_place}"


def _describe_before(evidence: EndEvidence) -> str:
    if evidence.frozen:
        return "; its agent had written no heartbeat for a long time"
    return "; it was stalled" if evidence.stalled else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
