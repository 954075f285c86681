"""What messages take that nobody has read yet."""

import os
import subprocess
import sys
import time
from pathlib import Path

from rankscope.collector.ingest.receiver import Receiver
from tests.integration.fault_figures import read_own_bytes

PEERS, EACH, FRAME_BYTES = 128, 8, 900  # fewer of each than libzmq reads ahead
PEERS_SAY = """
import sys, zmq
context = zmq.Context()
peers = [context.socket(zmq.DEALER) for _ in range(int(sys.argv[2]))]
for peer in peers:
    peer.connect(sys.argv[1])
    peer.send(b"here")
for _ in sys.stdin:
    for peer in peers:
        peer.send(bytes(int(sys.argv[3])))
    print("sent", flush=True)
"""


def hear(receiver: Receiver, frames: int) -> None:
    while receiver.frames_received < frames:
        receiver.poll(10_000, 100)


def wait_until_nothing_waits_in_the_kernel(port: int) -> None:
    """For ZeroMQ to have read it. What comes in one go is read in one go, and pins it together."""
    while any(
        int(rx_queue, 16)
        for _, local, _, _, queues, *_ in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        for rx_queue in [queues.partition(":")[2]]
        if int(local.partition(":")[2], 16) == port
    ):
        time.sleep(0.001)


def test_an_unread_message_takes_about_its_own_size() -> None:
    receiver = Receiver("tcp://127.0.0.1:0")
    command = [sys.executable, "-c", PEERS_SAY, receiver.endpoint, *map(str, (PEERS, FRAME_BYTES))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peers:
        assert peers.stdin is not None
        assert peers.stdout is not None
        hear(receiver, PEERS)
        before_bytes = read_own_bytes(os.getpid())
        for _ in range(EACH):
            print(file=peers.stdin, flush=True)
            assert peers.stdout.readline()
            wait_until_nothing_waits_in_the_kernel(int(receiver.endpoint.rpartition(":")[2]))
        unread_bytes = read_own_bytes(os.getpid()) - before_bytes
        hear(receiver, PEERS + PEERS * EACH)
        peers.kill()
    receiver.close()
    # 1.7 times their size, with what their connections hold; nine times while each pinned what it was read into.
    assert unread_bytes < 4 * PEERS * EACH * FRAME_BYTES
