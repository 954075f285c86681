"""Many runs with names of their own, one after the other, as sweeps and CI start them: none is refused."""

from typing import cast

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.ingest.admission import Admission
from rankscope.collector.ingest.exchange import Exchange
from rankscope.collector.ingest.message_admission import MessageAdmission
from rankscope.collector.ingest.receiver import Received
from rankscope.collector.run_updates import RunUpdates
from rankscope.measure.clock import SystemClock
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Message, Refused
from rankscope.measure.units import NS_PER_S

RUNS_MAX = 64


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * NS_PER_S

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns


class Standing:
    """A standing collector without sockets."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.answers: list[Message] = []
        self.stored: list[str] = []
        clock, faults, config = cast("SystemClock", self.clock), FaultLog(SystemClock()), CollectorConfig()
        exchange = Exchange()
        admission = Admission(config.runs_max, config.ranks_max)
        self.messages = MessageAdmission(
            admission, lambda _peer, answer: self.answers.append(answer), lambda _ns: None, clock, faults
        )
        self.updates = RunUpdates(
            config, clock, exchange=exchange, admission=self.messages, journal=Journal(config, 0.0, faults.count),
            faults=faults, on_forget=self.stored.append,
        )  # fmt: skip

    def receive(self, run: str, message: Message) -> None:
        one = Received(peer=run.encode(), message=message, frame=encode(message))
        self.updates.process_batch(self.messages.admit([one]))

    def start(self, run: str) -> None:
        identity = RankIdentity(
            run=run, rank=0, local_rank=0, world_size=1, node="n0", restart_count=0, boot_id=f"boot-{run}", pid=7
        )
        self.receive(run, Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=NS_PER_S))

    def end(self, run: str) -> None:
        self.receive(run, Goodbye(sequence=1, reason="finished", exit_code=0))

    def pass_time(self, seconds: float) -> None:
        self.clock.now_ns += round(seconds * NS_PER_S)
        self.updates.tick(self.clock.now_ns, self.clock.now_ns / NS_PER_S)

    @property
    def refused(self) -> list[str]:
        return [answer.reason for answer in self.answers if isinstance(answer, Refused)]


@pytest.mark.parametrize(("says_goodbye", "count"), [(True, 500), (False, 3 * RUNS_MAX)])
def test_hundreds_of_runs_in_a_row_are_all_admitted(*, says_goodbye: bool, count: int) -> None:
    """Without a goodbye a rank counts as silent after 15 s, and each run has another second."""
    collector = Standing()
    for number in range(count):
        collector.start(f"sweep-{number}")
        if says_goodbye:
            collector.end(f"sweep-{number}")
        collector.pass_time(1.0)
    assert collector.refused == []
    assert len(collector.updates.runs.names) == RUNS_MAX
    assert [one.partition("@")[0] for one in collector.stored] == [f"sweep-{one}" for one in range(count - RUNS_MAX)]


def test_a_silent_run_is_forgotten_after_those_that_have_ended() -> None:
    collector = Standing()
    collector.start("silent")
    collector.pass_time(20.0)
    for number in range(RUNS_MAX):
        collector.start(f"ended-{number}")
        collector.end(f"ended-{number}")
        collector.pass_time(1.0)
    collector.start("new")
    assert collector.refused == []
    assert [name.partition("@")[0] for name in collector.stored] == ["ended-0", "ended-1"]


def test_a_new_run_is_refused_while_all_others_report() -> None:
    collector = Standing()
    for number in range(RUNS_MAX + 1):
        collector.start(f"busy-{number}")
    collector.pass_time(1.0)
    assert collector.refused == ["full"]
