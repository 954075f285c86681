"""The reports of one rank on their way to the collector: held until acknowledged, spilled, sent, and logged about.

Until a collector is found, reports wait in the bounded resend buffer.
"""

import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import log_line
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.process_room import find_obstacle
from rankscope.agent.reporting.collector_notices import CollectorNotices, Delivered
from rankscope.agent.reporting.sender import AnswerOrder, Sender
from rankscope.agent.run_report import (
    NONE_SENT,
    NOT_FOUND,
    NOT_REACHED,
    ReceivedSummary,
    RunReport,
    build_report,
)
from rankscope.measure.clock import Clock
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import CaptureState, Goodbye, Hello, Report, SamplesTaken
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.delivery import Delivery
from rankscope.uplink.reconnect import draw_first_delay_ns
from rankscope.uplink.resend_buffer import ResendBuffer

if TYPE_CHECKING:
    from rankscope.agent.reporting.spill import Spill

SPILL = "spill"
DEMANDS = "collector_demands"
"""Name in the losses of requests that the collector made too often and that were ignored."""

THREADS: Final = 2
"""Of ZeroMQ's context."""
FILES: Final = 16
"""Of its context and a connection: 8 are the fewest with which ZeroMQ begins, and fewer can end the process."""
ROOM_RETRY_NS: Final = 30 * NS_PER_S
LOOK_NS = 10 * NS_PER_MS
"""Time between two looks whether the collector has fetched all that it may want of a process that ends."""


class Outbox:
    """The outbox of one rank, used on its agent thread; `connect` and `wake` may be called from others.

    `make_hello` returns the Hello of this rank process, given its first sequence number; `introduce` the one to send
    now, and is called at each connection. `on_order` answers the collector's orders of captures and
    samples.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        clock: Clock,
        *,
        make_hello: Callable[[int], Hello],
        introduce: Callable[[int], Hello],
        on_order: AnswerOrder = lambda _order: None,
    ) -> None:
        self._config = config
        self._identity = identity
        self._clock = clock
        self._spill = _make_spill(config, identity, make_hello) if config.spill_dir else None
        self.buffer = ResendBuffer(config.resend_reports_max, config.resend_bytes_max, self._spill)
        spread = random.Random(identity.boot_id)  # noqa: S311 - spreads connects, no secret
        self._delivery = Delivery(self.buffer, spread)
        self._sender = Sender(self._delivery, clock, identity.boot_id, introduce, on_order=on_order)
        self._address: CollectorAddress | None = None
        self._open_due_ns = 0
        self._is_obstacle_logged = False
        self._is_found = False
        self._notices: CollectorNotices | None = None
        self._is_refusal_logged = self._is_spill_logged = False

    @property
    def errors(self) -> dict[str, int]:
        """The number of failures by name: of the spill, and of requests ignored."""
        counts = {SPILL: 0 if self._spill is None else self._spill.failures, DEMANDS: self._sender.demands_ignored}
        return {name: count for name, count in counts.items() if count}

    @property
    def spill_folder(self) -> str:
        """The folder of the spilled reports; empty if there is none yet."""
        return "" if self._spill is None else self._spill.folder

    def read_report(self) -> RunReport:
        """Return what the collector has found about the run, from its last summary. Any thread may call it."""
        identity = self._identity
        return build_report(identity.run, identity.rank, self._find_summary(), self._clock.monotonic_ns())

    def _find_summary(self) -> ReceivedSummary | str:
        """Return the last summary, or why there is none."""
        if self._sender.summary is not None:
            return self._sender.summary
        refusal = self._sender.refused
        if refusal is not None:
            return f"the collector refuses this rank: {refusal.detail}"
        if self._sender.connected:
            return NONE_SENT
        return NOT_REACHED if self._is_found else NOT_FOUND

    def connect(self, address: CollectorAddress, *, is_configured: bool) -> None:
        """Connect to the collector. If it is a configured one, rank 0 logs whether it is reached."""
        if is_configured and self._identity.rank == 0:
            self._notices = CollectorNotices(self._identity.run, address.endpoint, self._clock.monotonic_ns())
        chance = random.Random(self._identity.boot_id)  # noqa: S311 - as above
        self._open_due_ns = self._clock.monotonic_ns() + draw_first_delay_ns(self._identity.world_size, chance)
        self._address = address
        self._is_found = True
        self.wake()

    def wake(self) -> None:
        """Make the present or next `exchange` return. Callable from any thread at any time."""
        self._sender.wake()

    def push(self, message: Report | Goodbye, *, step_count: int) -> None:
        """Queue a numbered message. Raise ValueError if a number is missing before it."""
        self._sender.push(message.sequence, encode(message), step_count)

    def send_answer(self, answer: CaptureState | SamplesTaken | None) -> None:
        """Send what has become of an order, if there is a connection: the collector asks again for what is lost."""
        self._sender.send(answer)

    def exchange(self, until_host_ns: int) -> None:
        """Connect when that is due, and send and receive until that time or until `wake` is called, at least once."""
        self._open(at_once=False)
        self._sender.exchange(until_host_ns if self._address is None else min(until_host_ns, self._open_due_ns))

    def drain(self, deadline_host_ns: int) -> bool:
        """Exchange until everything is acknowledged; return whether that was reached in time."""
        self._open(at_once=True)
        return self._sender.drain(deadline_host_ns)

    def serve(self, deadline_host_ns: int, is_wanted: Callable[[], bool]) -> None:
        """Answer the collector while `is_wanted` returns True, until the deadline at most."""
        while is_wanted() and (now_ns := self._clock.monotonic_ns()) < deadline_host_ns:
            self._sender.exchange(min(deadline_host_ns, now_ns + LOOK_NS))

    def close(self) -> None:
        """Close the connection and the spill."""
        self._sender.close()
        if self._spill is not None:
            self._spill.close()

    def log_changes(self) -> None:
        """Log what is new: a refusal, whether the collector is reached, the first failure of the spill."""
        self._log_refusal()
        if self._notices is not None:
            is_refused = self._sender.refused is not None
            text = self._update_notices(self._notices, is_connected=self._sender.connected, is_refused=is_refused)
            if text is not None:
                log_line(text)
        if self._spill is not None and self._spill.failures and not self._is_spill_logged:
            self._is_spill_logged = True
            log_line(f"reports cannot be written to spill_dir ({self._spill.problem}); they are kept in memory only")

    def log_summary(self) -> None:
        """Log how many reports were delivered, even if the collector was never reached."""
        self._log_refusal()
        if self._notices is not None:
            self._update_notices(self._notices, is_connected=self._delivery.ever_welcomed, is_refused=False)
            unacknowledged = len(self.buffer) + self.buffer.reports_dropped
            spill_dir = "" if self._spill is None or self._spill.failures else self._config.spill_dir
            log_line(self._notices.summarize(Delivered(self.buffer.last_sequence, unacknowledged, spill_dir)))

    def _open(self, *, at_once: bool) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._address is None or not (at_once or now_ns >= self._open_due_ns):
            return
        obstacle = find_obstacle(threads=THREADS, files=FILES)
        if obstacle:
            self._open_due_ns = now_ns + ROOM_RETRY_NS
            if not self._is_obstacle_logged:
                self._is_obstacle_logged = True
                text = f"rank {self._identity.rank} does not connect to the collector yet: {obstacle}"
                log_once_per_node(f"{text}; training is not affected", os.environ, topic="no room to connect")
            return
        address, self._address = self._address, None
        self._sender.open(address.endpoint, address.keys)

    def _log_refusal(self) -> None:
        refusal = self._sender.refused
        if refusal is not None and not self._is_refusal_logged:
            self._is_refusal_logged = True
            who = f"rank {self._identity.rank} ({refusal.reason})"
            text = f"the collector refuses {who}: {refusal.detail} Training continues without it."
            log_once_per_node(text, os.environ, topic=f"refused: {refusal.reason}")

    def _update_notices(self, notices: CollectorNotices, *, is_connected: bool, is_refused: bool) -> str | None:
        return notices.update(
            self._clock.monotonic_ns(),
            is_connected=is_connected,
            is_refused=is_refused,
            metrics_url=self._sender.metrics_url,
        )


def _make_spill(config: AgentConfig, identity: RankIdentity, make_hello: Callable[[int], Hello]) -> "Spill":
    from rankscope.agent.reporting.spill import Spill  # noqa: PLC0415 - mostly there is none

    return Spill(config.spill_dir, identity.boot_id, lambda: encode(make_hello(1)), config.spill_bytes_max)
