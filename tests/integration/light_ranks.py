"""Ranks without torch and without a training: made-up steps through the agent's own ring, builder, buffer and sender.

Hundreds of them fit on one machine, each on a thread or in a process of its own (`scripts/light_rank.py`). They count
what they have made themselves, so that a test can hold the collector's page against it.
"""

import contextlib
import os
import random
import secrets
import threading
from collections.abc import Callable, Iterator

from rankscope.agent.reporting.builder import Interval, ReportBuilder, ScriptEnd
from rankscope.agent.reporting.sender import Sender
from rankscope.agent.reporting.spill import Spill
from rankscope.agent.steps.ring import Ring
from rankscope.measure.clock import SystemClock
from rankscope.measure.codec import encode
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.machine import read_machine_id
from rankscope.measure.messages import Hello
from rankscope.measure.records import Losses, StepRecord
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.delivery import Delivery
from rankscope.uplink.resend_buffer import ResendBuffer
from tests.integration.serving import wait_for

INTERVAL_NS = 25 * NS_PER_MS
STEPS_PER_REPORT = 3
SPILL_BYTES_MAX = 1 << 20
DRAIN_NS_MAX = 120 * NS_PER_S
"""Over a network that breaks every 20th piece, and beside other tests, one in many runs took more than 60 s."""


def light_identity(run: str, rank: int, world_size: int, restart_count: int = 0) -> RankIdentity:
    """A new life of a rank, which this process lives."""
    return RankIdentity(
        run=RunId(run), rank=rank, local_rank=rank, world_size=world_size, node="n0", restart_count=restart_count,
        boot_id=BootId(secrets.token_hex(8)), pid=os.getpid(), machine_id=read_machine_id(),
    )  # fmt: skip


class LightRank:
    """One rank, on the thread that calls `run`, or that opens it and then drives it step by step. The bounds of its
    buffer are the caller's.
    """

    def __init__(
        self,
        identity: RankIdentity,
        endpoint: str,
        *,
        spill_dir: str = "",
        reports_max: int = 4096,
        interval_ns: int = INTERVAL_NS,
        keys: ClientKeys | None = None,
        on_report: Callable[[int], None] = lambda _sequence: None,
        ends: str = "finished",
        fills_time: bool = False,
    ) -> None:
        self.identity = identity
        self._endpoint = endpoint
        self._interval_ns = interval_ns
        self._keys = keys
        self._on_report = on_report
        self._ends = ends
        self._clock = SystemClock()
        self._steps_until_ns: int | None = self._clock.monotonic_ns() if fills_time else None
        self._steps: Ring[StepRecord] = Ring(STEPS_PER_REPORT)
        self._builder = ReportBuilder()
        self.spill = Spill(spill_dir, identity.boot_id, lambda: encode(self._hello(1)), SPILL_BYTES_MAX)
        self.buffer = ResendBuffer(reports_max, 1 << 24, self.spill if spill_dir else None)
        self.delivery = Delivery(self.buffer, random.Random(identity.boot_id))
        self._sender = Sender(self.delivery, self._clock, identity.boot_id, self._hello)
        self._stopping = threading.Event()
        self.reports = 0
        """Reports made so far."""

    @property
    def made(self) -> int:
        """Step records made so far."""
        return self._steps.appended

    @property
    def overwritten(self) -> int:
        """Of those, how many the ring has lost."""
        return self._steps.overwritten

    @property
    def acknowledged(self) -> int:
        """Messages that a collector has acknowledged, where none were dropped."""
        return self.buffer.first_sequence - 1

    def stop(self) -> None:
        """Make `run` send what is left, say goodbye and return."""
        self._stopping.set()
        self._sender.wake()

    def run(self, reports: int | None = None) -> bool:
        """Report until stopped, or so often; whether everything was acknowledged in the end."""
        self.open()
        try:
            while not self._stopping.is_set() and (reports is None or self.reports < reports):
                self.report()
                self.exchange(self._clock.monotonic_ns() + self._interval_ns)
            self.say_goodbye()
            return self._sender.drain(self._clock.monotonic_ns() + DRAIN_NS_MAX)
        finally:
            self.close()

    # -- step by step -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to connect."""
        self._sender.open(self._endpoint, self._keys)

    def exchange(self, until_ns: int) -> None:
        """Send and receive until then; a time that is over does it once."""
        self._sender.exchange(until_ns)

    def say_goodbye(self) -> None:
        """Make the last message."""
        goodbye = self._builder.build_goodbye(ScriptEnd(self._ends, exit_code=0))
        self._sender.push(goodbye.sequence, encode(goodbye), 0)

    def close(self) -> None:
        """Hang up. What was not acknowledged stays in the spill, if there is one."""
        self._sender.close()
        self.spill.close()

    def report(self) -> None:
        """Make some steps and report them; they go out with the next `exchange`."""
        now_ns = self._clock.monotonic_ns()
        # One more than the ring holds: it is overwritten, and counted.
        count = STEPS_PER_REPORT + (self.reports % 8 == 0)
        length_ns, start_ns = NS_PER_MS, int(now_ns)
        if self._steps_until_ns is not None:  # one step after the other, without a gap
            start_ns, length_ns = self._steps_until_ns, (now_ns - self._steps_until_ns) // count
            self._steps_until_ns = start_ns + count * length_ns
        for number in range(count):
            start = start_ns if self._steps_until_ns is None else start_ns + number * length_ns
            self._steps.append(StepRecord(step=self.made, start_host_ns=start, duration_ns=length_ns, phases_ns={}))
        steps = self._steps.drain()
        losses = Losses(
            steps_overwritten=self._steps.overwritten,
            steps_dropped_in_reports=self.buffer.steps_dropped,
            reports_dropped=self.buffer.reports_dropped,
            steps_made=self._steps.appended,
            steps_buffered=len(self._steps),
        )
        report = self._builder.build(Interval(steps=steps, losses=losses), now_ns)
        self._sender.push(report.sequence, encode(report), len(steps))
        self.reports += 1
        self._on_report(report.sequence)

    def _hello(self, first_sequence: int) -> Hello:
        return Hello(
            identity=self.identity,
            first_sequence=first_sequence,
            host_ns=self._clock.monotonic_ns(),
            wall_ns=self._clock.wall_ns(),
            report_interval_ns=self._interval_ns,
        )


class Crew:
    """Ranks on threads of this process. `stop` ends them; every one must have been acknowledged then."""

    def __init__(self, ranks: list[LightRank]) -> None:
        self.ranks = ranks
        self._heard: list[bool] = []
        self._threads = [threading.Thread(target=self._run, args=(rank,), daemon=True) for rank in ranks]
        for thread in self._threads:
            thread.start()

    def stop(self) -> bool:
        """Whether a collector has acknowledged everything of every rank."""
        for rank in self.ranks:
            rank.stop()
        for thread in self._threads:
            thread.join()
        return len(self._heard) == len(self.ranks) and all(self._heard)

    def reports(self) -> int:
        """What all have made together."""
        return sum(rank.reports for rank in self.ranks)

    def fewest_reports(self) -> int:
        """What the rank has made that has made the fewest."""
        return min(rank.reports for rank in self.ranks)

    def fewest_acknowledged(self) -> int:
        """What is acknowledged of the rank of which the fewest are."""
        return min(rank.acknowledged for rank in self.ranks)

    def _run(self, rank: LightRank) -> None:
        self._heard.append(rank.run())


def wait_for_reports(crew: Crew, count: int) -> None:
    """Wait until every rank has made so many more."""
    target = crew.fewest_reports() + count
    wait_for(
        lambda: True if crew.fewest_reports() >= target else None,
        lambda: f"the ranks have made {crew.fewest_reports()} reports",
    )


def wait_for_acknowledgements(crew: Crew, count: int) -> None:
    """Wait until of every rank so many more are acknowledged."""
    target = crew.fewest_acknowledged() + count
    wait_for(
        lambda: True if crew.fewest_acknowledged() >= target else None,
        lambda: f"of some rank only {crew.fewest_acknowledged()} of {target} are acknowledged",
    )


def made_by(crew: Crew) -> dict[int, int]:
    """How many steps each rank has made, by its number."""
    return {rank.identity.rank: rank.made for rank in crew.ranks}


@contextlib.contextmanager
def crew_of(run: str, size: int, endpoint: str, **rank_settings: object) -> Iterator[Crew]:
    """So many ranks of a run, which end with the block at the latest."""
    ranks = [LightRank(light_identity(run, rank, size), endpoint, **rank_settings) for rank in range(size)]  # type: ignore[arg-type]
    crew = Crew(ranks)
    try:
        yield crew
    finally:
        crew.stop()
