"""Somebody behind a relay, or in its place, who sends what no agent would: refused by reason and counted, and a rank
beside him goes on.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from rankscope.collector.keys import make_keys
from rankscope.measure.codec import FRAME_BYTES_MAX, MAGIC, encode
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.messages import Ack, CaptureOrder, CapturePartWanted, HelloWanted, Refused, Report, Welcome
from rankscope.measure.node_messages import RankEnded, Relayed, RelayedFrame, RelayHello
from tests.integration.relaying import RunningRelay, relaying
from tests.integration.serving import Served, serving, wait_for
from tests.integration.wire_peer import Peer, connected, hello_of, identity_of, read_counts

REFUSED_THERE = "rankscope_relay_refused_total"
DROPPED_THERE = "rankscope_relay_frames_dropped_total"
PEERS = "rankscope_peers_refused_total"
FRAMES = "rankscope_frames_refused_total"

RELAY_ID = "relay-of-the-test"
GROWTH_BYTES_MAX = 96 * 1024 * 1024
"""What a relay may grow by: its buffer has 32 MiB, and what ZeroMQ reads ahead of one peer is 16 frames."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@contextlib.contextmanager
def open_relay(collector: str, *options: str) -> Iterator[RunningRelay]:
    """A relay that its collector has taken in: a Hello that comes before has to be said again, and a Peer does not."""
    with relaying(collector, *options, batch_interval_s=0.02) as relay:
        relay.wait_for_words("forwarding the reports of this node")
        yield relay


@pytest.fixture(scope="module")
def relay(served: Served) -> Iterator[RunningRelay]:
    with open_relay(served.endpoint) as relay:
        yield relay


@contextlib.contextmanager
def good_rank(endpoint: str, boot_id: str, keys: ClientKeys | None = None, run: str = "good") -> Iterator[Peer]:
    """A rank that has joined, whose reports must be acknowledged to the very end."""
    with connected(endpoint, boot_id, keys) as peer:
        peer.identity = identity_of(boot_id, run=run)
        peer.join().report(3)
        yield peer
        peer.report(3)


def counted(served: Served, metric: str, reason: str, at_least: int) -> int:
    """The count, once it has come to that."""
    return counted_while(lambda: None, served, metric, reason, at_least)


def counted_while(act: Callable[[], object], served: Served, metric: str, reason: str, at_least: int) -> int:
    """The count, once it has come to that, doing something again until then."""
    seen: list[Mapping[str, int]] = [{}]

    def look() -> int | None:
        act()
        seen[0] = read_counts(served, metric)
        count = seen[0].get(reason, 0)
        return count if count >= at_least else None

    return wait_for(look, lambda: f"{metric} {reason} is not {at_least}: {seen[0]}")


def counted_by_relay(good: Peer, served: Served, metric: str, reason: str, at_least: int) -> int:
    """The same of what a relay counts, which it says with each batch: there has to be one after what is counted."""
    return counted_while(good.report, served, metric, reason, at_least)


@pytest.mark.parametrize(
    ("reason", "frame"),
    [
        ("too_short", b""),
        ("bad_magic", b"GET / HTTP/1.1\r\n\r\n"),
        ("protocol_too_new", MAGIC + b"\x00\x02\x03"),
        ("unknown_kind", MAGIC + b"\x00\x01\xff"),
        ("bad_body", encode(Report(sequence=1, host_ns=0))[:-1]),
        ("too_large", b"x" * (FRAME_BYTES_MAX - 4095)),
        ("unexpected", encode(Ack(through=5))),
        ("unexpected", encode(CaptureOrder(id="c1", first_step=5, last_step=7))),
        ("unexpected", encode(CapturePartWanted(id="c1", offset=0, length=1))),
        ("unexpected", encode(RelayHello(name="n", boot_id="b"))),
        ("unexpected", encode(Relayed(frames=(RelayedFrame(b"boot-good", encode(Report(sequence=9, host_ns=0))),)))),
    ],
)
def test_frames_no_rank_sends_stop_at_the_relay_and_are_counted(
    served: Served, relay: RunningRelay, reason: str, frame: bytes
) -> None:
    before = read_counts(served, REFUSED_THERE).get(reason, 0)
    received = read_counts(served, FRAMES)
    with good_rank(relay.endpoint, "boot-good") as good, connected(relay.endpoint, "boot-bad") as bad:
        bad.send_bytes(frame)
        assert counted_by_relay(good, served, REFUSED_THERE, reason, before + 1) == before + 1
    assert read_counts(served, FRAMES) == received  # the collector never saw it


def test_relay_asks_for_a_hello_before_it_passes_reports_on(served: Served, relay: RunningRelay) -> None:
    before = read_counts(served, DROPPED_THERE).get("no_hello", 0)
    with good_rank(relay.endpoint, "boot-good") as good, connected(relay.endpoint, "boot-bad") as bad:
        bad.send(Report(sequence=1, host_ns=0))
        bad.await_answer(HelloWanted)
        assert counted_by_relay(good, served, DROPPED_THERE, "no_hello", before + 1) == before + 1


def test_life_claimed_by_another_route_keeps_its_own_answers(served: Served, relay: RunningRelay) -> None:
    with (
        good_rank(relay.endpoint, "boot-good") as good,
        open_relay(served.endpoint, "--name", "another") as other,
        connected(other.endpoint, "boot-good") as thief,
    ):
        thief.send(hello_of(good.identity))
        assert thief.await_answer(Refused).reason == "identity_taken"
        good.report(3)  # no Refused came to it, which would end it


def test_flood_from_one_rank_costs_no_memory_and_others_go_on(served: Served, relay: RunningRelay) -> None:
    process = psutil.Process(relay.pid)
    before = process.memory_info().rss
    with good_rank(relay.endpoint, "boot-good") as good, connected(relay.endpoint, "boot-flood") as flood:
        flood.identity = identity_of("boot-flood", run="flood")
        flood.join()
        for _ in range(20_000):
            flood.send(Report(sequence=1, host_ns=0))
        good.report(5)
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX
    assert served.read_run("flood") is not None


def test_a_batch_cannot_hold_a_batch(served: Served) -> None:
    before = read_counts(served, FRAMES).get("bad_body", 0)
    inner = encode(Relayed(frames=()))
    with connected(served.endpoint, RELAY_ID) as relay:
        relay.send(RelayHello(name="n", boot_id="b"))
        relay.await_answer(Welcome)
        relay.send(Relayed(frames=(RelayedFrame(b"boot-one", inner), RelayedFrame(b"boot-one", b"garbage"))))
        assert counted(served, FRAMES, "bad_body", before + 1) == before + 1


# -- keys -------------------------------------------------------------------------------------------------------------


class Keyed:
    """A collector with keys, and those of two teams and a relay."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.folder = folder

    def keys_of(self, name: str, server: str = "collector.pub") -> ClientKeys:
        """What a client of that name has, to speak with that server."""
        server_key = read_public_key(str(self.folder / server), "collector_key_file")
        return ClientKeys(server_key, read_key_pair(str(self.folder / f"{name}.key"), "key_file"))

    def relay_options(self, name: str, *more: str) -> tuple[str, ...]:
        """A relay with that client's keys."""
        return (
            "--key-file",
            f"{self.folder}/{name}.key",
            "--collector-key-file",
            f"{self.folder}/collector.pub",
            *more,
        )

    def with_rank_keys(self) -> contextlib.AbstractContextManager[RunningRelay]:
        """A relay that wants to see its ranks' keys."""
        options = self.relay_options("node", "--allowed-keys", f"{self.folder}/allowed")
        return open_relay(self.served.endpoint, *options)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, ["ours", "theirs"], relays=["node"], force=False)
    with serving("--key-file", f"{folder}/collector.key", "--allowed-keys", f"{folder}/allowed") as served:
        yield Keyed(served, folder)


def test_rank_without_keys_gets_in_through_a_relay_with_a_key(keyed: Keyed) -> None:
    with (
        open_relay(keyed.served.endpoint, *keyed.relay_options("node")) as relay,
        good_rank(relay.endpoint, "boot-keyless", run="keyless") as good,
    ):
        good.report(2)


def test_relay_with_an_agent_key_is_refused_and_logs_what_lacks(keyed: Keyed) -> None:
    before = read_counts(keyed.served, PEERS).get("relay_not_allowed", 0)
    with relaying(keyed.served.endpoint, *keyed.relay_options("ours")) as relay:
        relay.wait_for_words("refuses this relay (relay_not_allowed)")
        assert "`rankscope keys FOLDER --relay NAME`" in relay.read_stderr()
    assert counted(keyed.served, PEERS, "relay_not_allowed", before + 1)


def test_frames_packed_by_an_agent_for_others_are_not_looked_at(keyed: Keyed) -> None:
    victim = identity_of("boot-victim", run="victims")
    with connected(keyed.served.endpoint, RELAY_ID, keyed.keys_of("theirs")) as thief:
        thief.send(RelayHello(name="n", boot_id="b"))
        assert thief.await_answer(Refused).reason == "relay_not_allowed"
        thief.send(Relayed(frames=(RelayedFrame(b"boot-victim", encode(hello_of(victim))),)))
        thief.await_answer(HelloWanted)
    assert "victims" not in keyed.served.read_run_names()


def test_team_key_passes_the_relay_and_keeps_other_teams_out(keyed: Keyed) -> None:
    relay_key = "allowed/relays/node.pub"
    with (
        keyed.with_rank_keys() as relay,
        good_rank(relay.endpoint, "boot-ours", keyed.keys_of("ours", relay_key), "ours") as good,
        connected(relay.endpoint, "boot-theirs", keyed.keys_of("theirs", relay_key)) as thief,
    ):
        thief.send(hello_of(identity_of("boot-theirs", run=good.identity.run)))
        assert thief.await_answer(Refused).reason == "run_taken"
        # A notice that the rank has died is no sidecar's of that rank.
        ended = RankEnded(sequence=1, identity=good.identity, host_ns=0, wall_ns=0, reason="killed")
        before = read_counts(keyed.served, PEERS).get("identity_taken", 0)
        thief.send(ended)
        assert counted(keyed.served, PEERS, "identity_taken", before + 1) == before + 1


def test_a_rank_may_go_on_through_another_way_with_the_same_key(keyed: Keyed) -> None:
    with keyed.with_rank_keys() as relay:
        keys = keyed.keys_of("ours", "allowed/relays/node.pub")
        with good_rank(relay.endpoint, "boot-moves", keys, "moves") as before:
            before.report()
            sequence, identity = before.sequence + 3, before.identity
    with connected(keyed.served.endpoint, "boot-moves", keyed.keys_of("ours")) as after:
        after.send(hello_of(identity, first_sequence=sequence + 1))
        assert after.await_answer(Welcome).admitted_through == sequence


def test_rank_whose_key_the_relay_does_not_allow_stays_out(keyed: Keyed) -> None:
    with keyed.with_rank_keys() as relay:
        other = keyed.folder / "other"
        make_keys(other, ["stranger"], force=False)
        server = read_public_key(str(keyed.folder / "allowed" / "relays" / "node.pub"), "collector_key_file")
        stranger = ClientKeys(server, read_key_pair(str(other / "stranger.key"), "key_file"))
        before = read_counts(keyed.served, REFUSED_THERE).get("key_not_allowed", 0)
        with (
            connected(relay.endpoint, "boot-strange", stranger),
            good_rank(relay.endpoint, "boot-good", keyed.keys_of("ours", "allowed/relays/node.pub"), "ours") as good,
        ):
            counted_by_relay(good, keyed.served, REFUSED_THERE, "key_not_allowed", before + 1)
