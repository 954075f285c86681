"""What messages take that nobody has read yet."""

import os
import subprocess
import sys

from rankscope.collector.ingest.receiver import Receiver
from tests.integration.fault_figures import read_own_bytes

PEERS, EACH, FRAME_BYTES = 128, 16, 900
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


def test_what_nobody_has_read_yet_takes_no_memory() -> None:
    """It waits where it is bounded: in the kernel, and with those who have sent it."""
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
        unread_bytes = read_own_bytes(os.getpid()) - before_bytes
        hear(receiver, PEERS + PEERS * EACH)
        peers.kill()
    receiver.close()
    assert unread_bytes < PEERS * EACH * FRAME_BYTES / 4
