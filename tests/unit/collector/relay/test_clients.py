"""The choice of a collector for the frames of a rank behind a relay."""

import pytest

from rankscope.collector.relay.clients import RelayClients, comes_from_rank, is_urgent
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import (
    CAPTURE_PART_BYTES_MAX,
    Ack,
    CaptureOrder,
    CapturePart,
    CapturePartWanted,
    CaptureState,
    ClockPing,
    ClockPong,
    Goodbye,
    Hello,
    HelloWanted,
    Message,
    Refused,
    Report,
    SamplesTaken,
    SettingsTaken,
    Welcome,
)
from rankscope.measure.node_messages import (
    InspectorRead,
    PreflightAnswer,
    PreflightEnded,
    PreflightPastWanted,
    RankEnded,
    RankUnresponsive,
    RasAnswered,
    Relayed,
    RelayHello,
)
from rankscope.measure.preflights import COLLECTOR_KEY
from rankscope.measure.shards import choose_collector

ENDPOINTS = ["tcp://a:1", "tcp://b:1"]
RUNS = {choose_collector(run, ENDPOINTS): run for run in map(str, range(100))}
"""A run of each collector."""
IDENTITY = RankIdentity(
    run=RUNS["tcp://a:1"], rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-one", pid=1
)
HELLO = Hello(identity=IDENTITY, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)
ENDED = RankEnded(sequence=1, identity=IDENTITY, host_ns=0, wall_ns=0, reason="killed")
SILENT = RankUnresponsive(sequence=1, identity=IDENTITY, host_ns=0, since_host_ns=0)
ASKED = RasAnswered(sequence=1, identity=IDENTITY, host_ns=0, stalled_since_host_ns=0)
DUMPED = InspectorRead(sequence=1, identity=IDENTITY, host_ns=0)
REPORT = Report(sequence=1, host_ns=0)
PONG = ClockPong(collector_ns=0, host_ns=0)
STATE = CaptureState(id="c1", state="accepted")
SAMPLES, SETTINGS = SamplesTaken(id="s1", state="taken"), SettingsTaken(id="1")
PART = CapturePart(id="c1", offset=0, data=bytes(CAPTURE_PART_BYTES_MAX))
WANTED = PreflightPastWanted(number=1, nodes=())
CHECKED = PreflightEnded(number=2, preflight="p1", outcomes=())
GOODBYE = Goodbye(sequence=2, reason="finished")


def hello_of(run: str) -> Hello:
    identity = RankIdentity(
        run=run, rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-two", pid=1
    )
    return Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_messages_of_a_rank_go_to_the_collector_of_its_run(endpoint: str) -> None:
    clients = RelayClients(ENDPOINTS)
    assert clients.find_endpoint(b"rank", hello_of(RUNS[endpoint])) == endpoint
    assert [clients.find_endpoint(b"rank", message) for message in (REPORT, PONG, STATE, PART, GOODBYE)] == [
        endpoint
    ] * 5


def test_rank_without_a_hello_has_no_collector() -> None:
    clients = RelayClients(ENDPOINTS)
    assert [clients.find_endpoint(b"rank", message) for message in (REPORT, PONG, STATE, PART, GOODBYE)] == [None] * 5


def test_notice_goes_to_the_collector_of_its_run_without_hello() -> None:
    clients = RelayClients(ENDPOINTS)
    assert clients.find_endpoint(b"sidecar", ENDED) == "tcp://a:1"
    assert clients.find_endpoint(b"sidecar", SILENT) == "tcp://a:1"
    assert clients.find_endpoint(b"sidecar", ASKED) == "tcp://a:1"
    assert clients.find_endpoint(b"sidecar", DUMPED) == "tcp://a:1"
    assert len(clients) == 0


@pytest.mark.parametrize("message", [WANTED, CHECKED])
def test_all_preflights_go_to_one_collector_without_hello(message: Message) -> None:
    clients = RelayClients(ENDPOINTS)
    found = {clients.find_endpoint(peer, message) for peer in (b"one", b"two", b"three")}
    assert found == {choose_collector(COLLECTOR_KEY, ENDPOINTS)}
    assert len(clients) == 0


def test_rank_with_the_oldest_hello_is_forgotten() -> None:
    clients = RelayClients(ENDPOINTS, clients_max=2)
    for peer in (b"one", b"two", b"one", b"three"):
        clients.find_endpoint(peer, HELLO)
    assert {peer: clients.find_endpoint(peer, REPORT) for peer in (b"one", b"two", b"three")} == {
        b"one": "tcp://a:1", b"two": None, b"three": "tcp://a:1",
    }  # fmt: skip


def test_ranks_of_one_collector_are_listed() -> None:
    clients = RelayClients(ENDPOINTS)
    clients.find_endpoint(b"one", hello_of(RUNS["tcp://a:1"]))
    clients.find_endpoint(b"two", hello_of(RUNS["tcp://b:1"]))
    clients.find_endpoint(b"three", hello_of(RUNS["tcp://a:1"]))
    assert clients.of("tcp://a:1") == [b"one", b"three"]
    clients.forget(b"one")
    assert clients.of("tcp://a:1") == [b"three"]


@pytest.mark.parametrize(
    "message", [HELLO, REPORT, GOODBYE, PONG, STATE, PART, SAMPLES, SETTINGS, ENDED, SILENT, ASKED, WANTED, CHECKED]
)
def test_messages_of_ranks_and_sidecars_are_forwarded(message: Message) -> None:
    assert comes_from_rank(message)


@pytest.mark.parametrize(
    "message",
    [
        Ack(through=1), Welcome(admitted_through=1), HelloWanted(), Refused(reason="full", detail=""),
        ClockPing(collector_ns=0), RelayHello(name="n", boot_id="b"), Relayed(frames=()),
        CaptureOrder(id="c1", first_step=5, last_step=7), CapturePartWanted(id="c1", offset=0, length=1),
        PreflightAnswer(number=1),
    ],
)  # fmt: skip
def test_messages_of_collectors_and_relays_are_not_forwarded(message: Message) -> None:
    assert not comes_from_rank(message)


def test_starts_ends_and_captures_are_urgent_and_reports_are_not() -> None:
    assert [is_urgent(message) for message in (HELLO, GOODBYE, ENDED, SILENT, ASKED, STATE, PART, WANTED)] == [True] * 8
    assert [is_urgent(message) for message in (REPORT, PONG)] == [False] * 2
