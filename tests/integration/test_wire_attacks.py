"""Attacks on the agents' port of a real collector: who does not keep to the rules is cut off, and the ranks go on."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fault_figures import read_resident_bytes
from tests.integration.serving import Served, serving, wait_for
from tests.integration.wire_peer import Peer, connected, identity_of, read_counts

ATTACKER = Path(__file__).parent / "scripts" / "wire_attack.py"
PEERS = "rankscope_peers_refused_total"
RANKS = 4
MIB = 1024 * 1024


@contextlib.contextmanager
def attacking(served: Served, kind: str, connections: int) -> Iterator[None]:
    """A process of its own attacks meanwhile."""
    host, _, port = served.endpoint.removeprefix("tcp://").rpartition(":")
    command = [sys.executable, str(ATTACKER), kind, host, port, str(connections)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "attacking\n"
        try:
            yield
        finally:
            attacker.kill()


@contextlib.contextmanager
def honest_ranks(served: Served) -> Iterator[list[Peer]]:
    """The ranks of one run, each welcome."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(served.endpoint, f"boot-rank-{rank}")) for rank in range(RANKS)]
        for rank, peer in enumerate(peers):
            peer.identity = identity_of(f"boot-rank-{rank}", rank=rank, world_size=RANKS)
            peer.join().report(2)
        yield peers


def await_cut(served: Served, reason: str, at_least: int) -> None:
    wait_for(
        lambda: read_counts(served, PEERS).get(reason, 0) >= at_least or None,
        lambda: f"{reason}: {read_counts(served, PEERS)}",
    )


@pytest.fixture
def served() -> Iterator[Served]:
    """A collector without keys."""
    with serving() as served:
        yield served


def test_ranks_stay_live_and_acknowledged_under_tiny_frames(served: Served) -> None:
    with honest_ranks(served) as peers, attacking(served, "flood", 8):
        await_cut(served, "too_many_refused", 64)  # each of the eight some times: they connect again
        for _ in range(10):
            for peer in peers:
                peer.report()
        await_cut(served, "too_many_refused", 128)
        for peer in peers:
            peer.report()
        run = served.wait_for_run("good", lambda run: all(rank.last_sequence == 13 for rank in run.ranks))
    assert [(rank.up, rank.reports_admitted, rank.report_gaps) for rank in run.ranks] == [(True, 13, 0)] * RANKS
    assert "refused (too_many_refused)" in served.read_stderr()


def test_half_frames_of_many_connections_are_bounded_in_sum(served: Served) -> None:
    """64 connections hold 4 MiB each where nobody ends them, 256 MiB at any time; together they may hold 16, and until
    they are measured what they have sent since they came back.
    """
    with honest_ranks(served) as peers:
        before_bytes = read_resident_bytes(served.pid)

        def is_small() -> bool | None:
            return read_resident_bytes(served.pid) - before_bytes < 160 * MIB or None

        with attacking(served, "half", 64):
            await_cut(served, "too_much_held", 60)
            for peer in peers:
                peer.report(3)
            wait_for(is_small, lambda: f"{(read_resident_bytes(served.pid) - before_bytes) // MIB} MiB")


def test_endless_message_is_cut_off_before_it_fills_memory(served: Served) -> None:
    """A part of no bytes takes 64 bytes of memory, and two on the wire. All may take 64 MiB together, and what was sent
    since they were last measured.
    """
    with honest_ranks(served) as peers:
        before_bytes = read_resident_bytes(served.pid)
        with attacking(served, "parts", 2):
            await_cut(served, "too_much_held", 2)
            for peer in peers:
                peer.report(3)
            grown_bytes = read_resident_bytes(served.pid) - before_bytes
    assert grown_bytes < 384 * MIB


@pytest.mark.xfail(
    raises=(AssertionError, OSError), strict=True, reason="libzmq 4.3.5 aborts: `Assertion failed: !_io_error`"
)
def test_peers_leaving_amid_heartbeats_do_not_end_the_collector() -> None:
    """What SECURITY.md says of it is to go when this passes, with a libzmq that is mended."""
    with serving() as served, attacking(served, "pings", 8):
        await_cut(served, "too_many_refused", 64)


def test_floods_of_large_frames_are_cut_off_before_memory_fills(served: Served) -> None:
    """Eight connections send frames of 1 MiB as fast as they are read, some GiB a second, and reconnect at once."""
    with honest_ranks(served) as peers:
        before_bytes = read_resident_bytes(served.pid)
        with attacking(served, "large", 8):
            # What finds a flooder first depends on who reads how much: what it holds, its budget or what is refused.
            wait_for(lambda: sum(read_counts(served, PEERS).values()) >= 16 or None, lambda: "not cut off")
            for peer in peers:
                peer.report(3)
            grown_bytes = read_resident_bytes(served.pid) - before_bytes
    assert grown_bytes < 1024 * MIB


def test_connections_silent_after_their_handshake_give_way() -> None:
    """Of the 128 files that the collector may have open they want 200."""
    with (
        serving(launcher=("prlimit", "--nofile=128:128")) as served,
        attacking(served, "silent", 200),
        honest_ranks(served) as peers,
    ):
        for peer in peers:
            peer.report(3)
        await_cut(served, "open_files", 1)
