"""Sender against a real ROUTER on loopback, which is killed and comes back."""

import contextlib
import os
import random
import select
import threading
from collections.abc import Callable, Iterator

import pytest
import zmq

from rankscope.agent.reporting.sender import (
    FRAMES_A_SECOND_MAX,
    ORDERS_A_SECOND_MAX,
    PINGS_A_SECOND_MAX,
    Sender,
)
from rankscope.measure import messages
from rankscope.measure.clock import SystemClock
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import SettingError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.units import NS_PER_S, HostNs, s_to_ns
from rankscope.uplink.delivery import HELLO_GAP_NS_MIN, Delivery, DeliverySettings, Refusal
from rankscope.uplink.resend_buffer import ResendBuffer

BOOT_ID = "boot-00000001"
DEADLINE_S = 300.0
"""How long a test waits for what must happen. Much more than it takes, since the machine may be busy."""


class CountingClock(SystemClock):
    """The system's clock, which counts how often it is asked, and lets a test wait for the first time."""

    def __init__(self) -> None:
        self.reads = 0
        self.was_read = threading.Event()

    def monotonic_ns(self) -> HostNs:
        """Read CLOCK_MONOTONIC."""
        self.reads += 1
        self.was_read.set()
        return super().monotonic_ns()


class Collector:
    """One life of a collector, on a thread of its own. It admits only the number that follows."""

    def __init__(self, port: int, admitted_through: int | None, dies_after: int | None) -> None:
        self.log: list[int] = []
        self.pongs: list[messages.ClockPong] = []
        self.of_captures: list[messages.Message] = []
        self.hellos: list[messages.Hello] = []
        self.peer: bytes | None = None
        self.sends_first: list[bytes] = []
        """Frames sent ahead of the Welcome."""
        self.refuses = False
        self.acknowledges = True
        self.admitted_through = admitted_through
        self._dies_after = dies_after
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.endpoint.rsplit(":", 1)[1])
        self._dying = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def kill(self) -> None:
        """Drop everything; when it returns the port is free again."""
        self._dying.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def is_dead(self) -> bool:
        """Whether it has died after the report it was to die after."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._dying.is_set() and len(self.log) != self._dies_after:
            if self._router.poll(10):
                peer, frame = self._router.recv_multipart()
                self.peer = peer
                for answer in self._answers(decode(frame)):
                    self._router.send_multipart([peer, answer])

    def _answers(self, message: messages.Message) -> Iterator[bytes]:
        if isinstance(message, messages.ClockPong):
            self.pongs.append(message)
        elif isinstance(message, messages.CaptureState | messages.CapturePart):
            self.of_captures.append(message)
        elif isinstance(message, messages.Hello):
            yield from self._greet(message)
        elif self.admitted_through is None:
            yield encode(messages.HelloWanted())
        elif isinstance(message, messages.Report | messages.Goodbye):
            if message.sequence == self.admitted_through + 1:
                self.admitted_through += 1
                self.log.append(message.sequence)
            if self.acknowledges:
                yield encode(messages.Ack(through=self.admitted_through))

    def _greet(self, hello: messages.Hello) -> Iterator[bytes]:
        self.hellos.append(hello)
        yield from self.sends_first
        if self.refuses:
            yield encode(messages.Refused(reason="unknown_run", detail="start it with --run"))
            return
        self.admitted_through = max(self.admitted_through or 0, hello.first_sequence - 1)
        welcome = messages.Welcome(
            admitted_through=self.admitted_through, metrics_url="http://here/metrics", hello_number=hello.hello_number
        )
        yield encode(welcome)


@contextlib.contextmanager
def living_collector(
    port: int = 0, admitted_through: int | None = None, dies_after: int | None = None
) -> Iterator[Collector]:
    """Start a collector on that port, or any, and kill it at the end."""
    collector = Collector(port, admitted_through, dies_after)
    try:
        yield collector
    finally:
        collector.kill()


class Rank:
    """A sender and what drives it."""

    def __init__(self, frames_max: int = 10_000, silence_s: float = 3600.0) -> None:
        self.clock = CountingClock()
        rules = DeliverySettings(resend_after_ns=s_to_ns(0.3), hello_interval_ns=s_to_ns(0.2))
        self.delivery = Delivery(ResendBuffer(frames_max, 10**8), random.Random(1), rules)
        self.sender = Sender(
            self.delivery, self.clock, BOOT_ID, self._make_hello,
            silence_ns=s_to_ns(silence_s), on_order=self._answer_capture,
        )  # fmt: skip
        self.pushed = 0

    def _answer_capture(
        self,
        message: messages.CaptureOrder | messages.CapturePartWanted | messages.SampleOrder | messages.SettingsOrder,
    ) -> messages.Message | None:
        if isinstance(message, messages.SettingsOrder):
            return messages.SettingsTaken(id=message.id)
        if isinstance(message, messages.SampleOrder):
            return messages.SamplesTaken(id=message.id, state="accepted")
        if isinstance(message, messages.CapturePartWanted):
            return messages.CapturePart(id=message.id, offset=message.offset, data=b"x" * message.length)
        return None if message.is_over else messages.CaptureState(id=message.id, state="accepted")

    def _make_hello(self, first_sequence: int) -> messages.Hello:
        who = RankIdentity(
            run="r", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id=BOOT_ID, pid=os.getpid()
        )
        return messages.Hello(identity=who, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=1)

    def push(self, count: int) -> None:
        """`count` more reports."""
        for _ in range(count):
            self.pushed += 1
            self.sender.push(self.pushed, encode(messages.Report(sequence=self.pushed, host_ns=0)), 1)

    def in_s(self, seconds: float) -> int:
        """That moment on the rank's clock."""
        return self.clock.monotonic_ns() + s_to_ns(seconds)

    def exchange_until(self, condition: Callable[[], bool]) -> None:
        """Drive the sender until it holds, and fail when it does not in time."""
        deadline_ns = self.in_s(DEADLINE_S)
        while not condition():
            assert self.clock.monotonic_ns() < deadline_ns, f"not in {DEADLINE_S} s; pushed {self.pushed}"
            self.sender.exchange(self.in_s(0.01))

    def is_done(self) -> bool:
        """Whether everything pushed is acknowledged."""
        return self.delivery.everything_acknowledged


@pytest.fixture
def rank() -> Iterator[Rank]:
    """A rank that has not found its collector yet."""
    rank = Rank()
    yield rank
    rank.sender.close()


def free_port() -> int:
    """A port on which nobody listens."""
    with living_collector() as collector:
        return collector.port


def test_reports_arrive_once_and_in_order(rank: Rank) -> None:
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.push(3)
        rank.exchange_until(rank.is_done)
        assert collector.log == [1, 2, 3]
        assert collector.peer == BOOT_ID.encode()


def test_welcome_connects_and_says_where_the_metrics_are(rank: Rank) -> None:
    assert (rank.sender.connected, rank.sender.metrics_url, rank.sender.refused) == (False, None, None)
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.connected)
        assert rank.sender.metrics_url == "http://here/metrics"


def test_a_backlog_of_many_windows_arrives_in_order(rank: Rank) -> None:
    rank.push(500)  # 64 in flight, 16 in the socket
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.exchange_until(rank.is_done)
        assert collector.log == list(range(1, 501))


def test_a_collector_that_comes_late_gets_everything_held(rank: Rank) -> None:
    port = free_port()
    rank.sender.open(f"tcp://127.0.0.1:{port}")
    rank.push(20)
    rank.sender.exchange(rank.in_s(0.2))
    with living_collector(port) as collector:
        rank.exchange_until(rank.is_done)
        assert collector.log == list(range(1, 21))


def test_rank_whose_connection_a_peer_took_over_comes_back() -> None:
    rank = Rank(silence_s=0.5)
    with contextlib.closing(rank.sender), living_collector() as collector, zmq.Context() as context:
        rank.sender.open(collector.endpoint)
        rank.push(3)
        rank.exchange_until(rank.is_done)
        with context.socket(zmq.DEALER) as thief:
            thief.setsockopt(zmq.IDENTITY, BOOT_ID.encode())
            thief.setsockopt(zmq.LINGER, 0)
            thief.connect(collector.endpoint)
            thief.send(encode(messages.Goodbye(sequence=1, reason="mine")))
            assert thief.poll(int(DEADLINE_S * 1000))  # the collector has answered the thief: the name is its now
            rank.push(3)
            rank.exchange_until(rank.is_done)
        assert collector.log == [1, 2, 3, 4, 5, 6]


def live_and_die(rank: Rank, port: int, admitted_through: int | None) -> Collector:
    """Let a collector die in the middle of a stream: after its tenth report, with many more under way."""
    with living_collector(port, admitted_through, dies_after=10) as collector:
        rank.push(100)
        rank.exchange_until(collector.is_dead)
    return collector


def test_remembering_collectors_lose_nothing_and_repeat_nothing(rank: Rank) -> None:
    port = free_port()
    rank.sender.open(f"tcp://127.0.0.1:{port}")
    log: list[int] = []
    for _ in range(3):
        log += live_and_die(rank, port, admitted_through=len(log)).log
    assert log == list(range(1, 31))
    with living_collector(port, admitted_through=30) as collector:
        rank.exchange_until(rank.is_done)
        assert collector.log == list(range(31, 301))


def test_forgetful_collectors_lose_nothing_and_repeat_in_no_life(rank: Rank) -> None:
    port = free_port()
    rank.sender.open(f"tcp://127.0.0.1:{port}")
    logs = [live_and_die(rank, port, admitted_through=None).log for _ in range(3)]
    with living_collector(port) as collector:
        rank.exchange_until(rank.is_done)
        logs.append(collector.log)
    assert all(log == list(range(log[0], log[-1] + 1)) for log in logs)
    assert {sequence for log in logs for sequence in log} == set(range(1, 301))


def test_frames_dropped_while_nobody_was_there_are_skipped() -> None:
    rank = Rank(frames_max=5)
    port = free_port()
    rank.sender.open(f"tcp://127.0.0.1:{port}")
    with contextlib.closing(rank.sender), living_collector(port) as collector:
        rank.push(20)
        rank.exchange_until(rank.is_done)
        assert collector.log == [16, 17, 18, 19, 20]


def test_drain_waits_until_the_goodbye_is_acknowledged(rank: Rank) -> None:
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.connected)
        rank.push(100)
        rank.sender.push(101, encode(messages.Goodbye(sequence=101, reason="finished")), 0)
        rank.sender.wake()  # a wake-up does not cut it short
        assert rank.sender.drain(rank.in_s(DEADLINE_S))
        assert collector.log == list(range(1, 102))


def test_drain_right_after_the_beginning_waits_for_the_welcome(rank: Rank) -> None:
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.push(3)
        assert rank.sender.drain(rank.in_s(DEADLINE_S))
        assert collector.log == [1, 2, 3]


def test_drain_gives_up_at_its_deadline(rank: Rank) -> None:
    with living_collector() as collector:
        collector.acknowledges = False
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.connected)
        rank.push(1)
        deadline_ns = rank.in_s(0.1)
        assert not rank.sender.drain(deadline_ns)
        assert rank.clock.monotonic_ns() >= deadline_ns


@pytest.mark.parametrize("is_open", [False, True])
def test_drain_gives_up_soon_when_no_collector_was_ever_there(rank: Rank, is_open: bool) -> None:
    if is_open:
        rank.sender.open(f"tcp://127.0.0.1:{free_port()}")
    rank.push(1)
    rank.sender.exchange(0)
    deadline_ns = rank.in_s(DEADLINE_S)
    assert not rank.sender.drain(deadline_ns)
    assert rank.clock.monotonic_ns() < deadline_ns


def test_drain_gives_up_at_once_when_refused_at_first(rank: Rank) -> None:
    with living_collector() as collector:
        collector.refuses = True
        rank.sender.open(collector.endpoint)
        rank.push(1)
        deadline_ns = rank.in_s(DEADLINE_S)
        assert not rank.sender.drain(deadline_ns)
        assert rank.clock.monotonic_ns() < deadline_ns


def test_drain_gives_up_at_once_when_refused(rank: Rank) -> None:
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.connected)
        collector.refuses = True
        collector.admitted_through = None  # it has forgotten the rank, asks for a Hello, and refuses it
        rank.push(1)
        rank.exchange_until(lambda: rank.sender.refused is not None)
        deadline_ns = rank.in_s(DEADLINE_S)
        assert not rank.sender.drain(deadline_ns)
        assert rank.clock.monotonic_ns() < deadline_ns


def test_a_refusal_is_kept_with_its_reason(rank: Rank) -> None:
    with living_collector() as collector:
        collector.refuses = True
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.refused is not None)
        assert rank.sender.refused == Refusal("unknown_run", "start it with --run")
        assert not rank.sender.connected


@pytest.mark.parametrize("is_open", [False, True])
def test_wake_ends_an_exchange_that_waits(rank: Rank, is_open: bool) -> None:
    if is_open:
        rank.sender.open(f"tcp://127.0.0.1:{free_port()}")
    rank.clock.was_read.clear()
    thread = threading.Thread(target=rank.sender.exchange, args=(rank.clock.wall_ns(),), daemon=True)  # decades ahead
    thread.start()
    assert rank.clock.was_read.wait(DEADLINE_S)
    rank.sender.wake()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_wakes_between_exchanges_end_only_the_next_one(rank: Rank) -> None:
    for _ in range(100_000):  # more than the pipe holds
        rank.sender.wake()
    deadline_ns = rank.in_s(DEADLINE_S)
    rank.sender.exchange(deadline_ns)
    assert rank.clock.monotonic_ns() < deadline_ns
    soon_ns = rank.in_s(0.05)
    rank.sender.exchange(soon_ns)
    assert rank.clock.monotonic_ns() >= soon_ns


def test_a_clock_ping_is_answered_with_both_clocks(rank: Rank) -> None:
    with living_collector() as collector:
        collector.sends_first = [encode(messages.ClockPing(collector_ns=123))]
        before_ns = rank.clock.monotonic_ns()
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: bool(collector.pongs))
        assert collector.pongs[0].collector_ns == 123
        assert before_ns < collector.pongs[0].host_ns <= rank.clock.monotonic_ns()


def test_orders_of_captures_are_answered_and_their_end_is_not(rank: Rank) -> None:
    order = messages.CaptureOrder(id="c1", first_step=5, last_step=7)
    wanted = messages.CapturePartWanted(id="c1", offset=3, length=messages.CAPTURE_PART_BYTES_MAX)
    over = messages.CaptureOrder(id="c1", first_step=5, last_step=7, is_over=True)
    with living_collector() as collector:
        collector.sends_first = [encode(order), encode(over), encode(wanted)]
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: len(collector.of_captures) >= 2)
        assert collector.of_captures[:2] == [
            messages.CaptureState(id="c1", state="accepted"),
            messages.CapturePart(id="c1", offset=3, data=b"x" * messages.CAPTURE_PART_BYTES_MAX),
        ]
        rank.push(2)
        rank.exchange_until(rank.is_done)
        assert collector.log == [1, 2]


def test_state_of_a_capture_without_a_connection_is_dropped(rank: Rank) -> None:
    rank.sender.send(messages.CaptureState(id="c1", state="written"))
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.push(1)
        rank.exchange_until(rank.is_done)
        assert collector.of_captures == []


def test_what_is_no_answer_of_a_collector_is_ignored_and_counted(rank: Rank) -> None:
    with living_collector() as collector:
        collector.sends_first = [b"", b"noise", encode(messages.Goodbye(sequence=1, reason="finished"))]
        rank.sender.open(collector.endpoint)
        rank.push(2)
        rank.exchange_until(rank.is_done)
        assert collector.log == [1, 2]
        assert rank.sender.frames_ignored == 3 * len(collector.hellos)


# -- a collector that asks for too much -------------------------------------------------------------------------------


def flood(collector: Collector, rank: Rank, message: messages.Message, count: int) -> None:
    """The collector sends so many of it before its Welcome, and all of them have come."""
    collector.sends_first = [encode(message)] * count
    rank.sender.open(collector.endpoint)
    rank.exchange_until(lambda: rank.sender.connected)


def test_clock_pings_above_the_rate_are_ignored_and_counted(rank: Rank) -> None:
    with living_collector() as collector:
        began_ns = rank.clock.monotonic_ns()
        flood(collector, rank, messages.ClockPing(collector_ns=1), 500)
        # A second Hello, where this machine is slow, brings 500 more.
        answered_max = PINGS_A_SECOND_MAX * (2 + (rank.clock.monotonic_ns() - began_ns) // NS_PER_S)
        assert len(collector.pongs) <= answered_max
        assert rank.sender.demands_ignored >= 500 - answered_max


def test_capture_orders_above_the_rate_are_ignored_and_counted(rank: Rank) -> None:
    with living_collector() as collector:
        began_ns = rank.clock.monotonic_ns()
        flood(collector, rank, messages.CaptureOrder(id="c1", first_step=5, last_step=7), 1000)
        # A second Hello, where this machine is slow, brings 1,000 more.
        answered_max = ORDERS_A_SECOND_MAX * (2 + (rank.clock.monotonic_ns() - began_ns) // NS_PER_S)
        assert len(collector.of_captures) <= answered_max
        assert rank.sender.frames_ignored >= 1000 - answered_max


def test_frames_beyond_so_many_a_second_wait_with_the_collector(rank: Rank) -> None:
    count = 3 * FRAMES_A_SECOND_MAX
    with living_collector() as collector:
        collector.sends_first = [b"noise"] * count
        began_ns = rank.clock.monotonic_ns()
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.frames_ignored >= count)
        # 2,000 in the second that begins with the first of them, 2,000 in the next one: the rest comes after both.
        assert rank.clock.monotonic_ns() - began_ns >= 2 * NS_PER_S


def test_hello_requests_are_answered_each_200_ms_without_error(rank: Rank) -> None:
    with living_collector() as collector:
        began_ns = rank.clock.monotonic_ns()
        flood(collector, rank, messages.HelloWanted(), 100)
        assert len(collector.hellos) <= 1 + (rank.clock.monotonic_ns() - began_ns) // HELLO_GAP_NS_MIN
        assert rank.sender.demands_ignored == 0
        rank.push(2)
        rank.exchange_until(rank.is_done)
        assert collector.log == [1, 2]


def test_collector_text_is_one_line_and_steers_no_terminal(rank: Rank) -> None:
    with living_collector() as collector:
        collector.sends_first = [encode(messages.Refused(reason="full\r", detail="\x1b[2Jgone\n" + "x" * 1000))]
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.refused is not None)
    assert rank.sender.refused is not None
    assert rank.sender.refused.reason == "full\\r"
    assert rank.sender.refused.detail == "\\x1b[2Jgone\\n" + "x" * 496 + "..."  # 4 + 3 + 4 + 2 + 496 + 3 = 512


@pytest.mark.parametrize("is_open", [False, True])
def test_without_a_collector_an_exchange_sleeps_through(rank: Rank, is_open: bool) -> None:
    if is_open:
        rank.sender.open(f"tcp://127.0.0.1:{free_port()}")
    rank.push(10)
    rank.clock.reads = 0
    rank.sender.exchange(rank.in_s(0.5))
    assert (
        rank.clock.reads < 20
    )  # five for a round of sending and waiting; a busy loop would read it thousands of times


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_closing_and_waking_leaves_the_parent_alone(rank: Rank) -> None:
    with living_collector() as collector:
        rank.sender.open(collector.endpoint)
        rank.exchange_until(lambda: rank.sender.connected)
        closed, says_closed = os.pipe()
        child = os.fork()
        if child == 0:
            rank.sender.wake()
            rank.sender.close()
            os.write(says_closed, b"closed")
            os._exit(0)
        assert select.select([closed], [], [], DEADLINE_S)[0]
        assert os.waitpid(child, 0)[1] == 0
        os.close(closed)
        os.close(says_closed)
        rank.push(2)
        rank.exchange_until(rank.is_done)
        assert collector.log == [1, 2]


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://host-without-port", "http://host:1"])
def test_unreadable_endpoint_is_refused_with_the_cure(rank: Rank, endpoint: str) -> None:
    with pytest.raises(SettingError, match=f"endpoint is '{endpoint}': .* Write it as tcp://HOST:PORT."):
        rank.sender.open(endpoint)
    rank.sender.exchange(0)


def test_a_sender_is_opened_once(rank: Rank) -> None:
    rank.sender.open("tcp://127.0.0.1:1")
    with pytest.raises(RuntimeError, match="open already"):
        rank.sender.open("tcp://127.0.0.1:2")


def test_close_and_wake_do_no_harm_afterwards(rank: Rank) -> None:
    rank.sender.open("tcp://127.0.0.1:1")
    rank.sender.close()
    rank.sender.wake()
    rank.sender.close()
    assert rank.delivery.next_wake_ns is None
