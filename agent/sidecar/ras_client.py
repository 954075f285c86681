"""Asks NCCL's RAS service, which every process of a job with NCCL 2.24 or later offers on its own machine.

    CLIENT PROTOCOL 2  ->  SERVER PROTOCOL 2
    TIMEOUT 3          ->  OK
    SET FORMAT json    ->  OK, or ERROR before NCCL 2.28.7, which has text only
    VERBOSE STATUS     ->  the answer, up to the end of the connection

NCCL's threads gather the answer from all processes of the job, without CUDA and without the training threads. Time and
size are bounded here whatever the other side sends: it may be another program, a stopped process, or a job of thousands
of ranks.
"""

import contextlib
import errno
import ipaddress
import socket
import time
from collections.abc import Iterator
from typing import Final

from rankscope.agent.sidecar.ras_address import parse_address
from rankscope.agent.sidecar.ras_answer import RasAnswer
from rankscope.measure.errors import UnavailableError

PROTOCOL: Final = 2
"""Version of the protocol in NCCL 2.24 to 2.30."""
CONNECT_S: Final = 2.0
"""Longest time to connect, and to be answered the first time. All processes of a machine listen at one port, and the
kernel chooses one of them: a stopped one accepts and does not answer."""
TOTAL_S: Final = 10.0
"""Longest time of a whole question; collectives of NCCL time out after 10 minutes by default."""
GATHER_S: Final = 3
"""Time after which NCCL stops waiting for processes that do not answer. By default it gives up at most 5 s later."""
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest answer that is read. JSON has about 550 bytes a rank of each communicator, so some 7,000 fit."""
LINE_BYTES_MAX: Final = 1024
PART_BYTES: Final = 1 << 16


class NothingListensError(UnavailableError):
    """Nothing listens at the address: no process with RAS runs here."""


def read_protocol(address: str, connect_s: float = CONNECT_S) -> int:
    """Return the version of the service's protocol. Raise UnavailableError with the reason if there is none."""
    with _connected(address, connect_s) as connection:
        return connection.greet()


def read_status(address: str, connect_s: float = CONNECT_S, total_s: float = TOTAL_S) -> RasAnswer:
    """Return what the service says about the job. Raise UnavailableError with the reason if it says nothing."""
    deadline_s = time.monotonic() + total_s
    with _connected(address, connect_s) as connection:
        connection.greet()
        connection.deadline_s = deadline_s
        answer = connection.ask(f"TIMEOUT {GATHER_S}")
        if answer != "OK":
            raise UnavailableError(f"NCCL RAS at {address} did not take a timeout: {answer!r}")
        is_json = connection.ask("SET FORMAT json") == "OK"
        connection.send("VERBOSE STATUS")
        text, cut = connection.receive_all()
    if not text.strip():
        raise UnavailableError(f"NCCL RAS at {address} said nothing about the job: {cut or 'it closed the connection'}")
    if text.startswith("ERROR"):
        raise UnavailableError(f"NCCL RAS at {address} answered {text[:200].strip()!r}")
    return RasAnswer(text, is_json, cut)


def is_own_address(host: str) -> bool:
    """Return whether a numeric address is one of this machine: only then can a socket be bound to it."""
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


class _Connection:
    """A connection to something that may be a RAS service. Every call ends by `deadline_s`, by time.monotonic()."""

    def __init__(self, connected: socket.socket, address: str, deadline_s: float) -> None:
        self._socket = connected
        self._address = address
        self._unread = b""
        self.deadline_s = deadline_s

    def greet(self) -> int:
        """Return the version of the protocol that the other side speaks. Raise UnavailableError if it speaks none."""
        answer = self.ask(f"CLIENT PROTOCOL {PROTOCOL}")
        version = answer.upper().removeprefix("SERVER PROTOCOL ").strip()
        if version == answer or not (version.isascii() and version.isdigit()):
            raise UnavailableError(f"what listens at {self._address} is no NCCL RAS: it answered {answer[:60]!r}")
        return int(version)

    def ask(self, command: str) -> str:
        """Return the line that answers a command. Raise UnavailableError, or OSError."""
        self.send(command)
        while b"\n" not in self._unread and len(self._unread) < LINE_BYTES_MAX:
            part = self._receive()
            if not part:
                raise UnavailableError(f"what listens at {self._address} closed the connection without an answer")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line[:LINE_BYTES_MAX].decode(errors="replace").strip()

    def send(self, command: str) -> None:
        """Send a command. Raise OSError."""
        self._socket.settimeout(self._find_left_s())
        self._socket.sendall(command.encode() + b"\n")

    def receive_all(self) -> tuple[str, str]:
        """Return what comes up to the end of the connection, and why the end is missing, if it is."""
        answer, cut = bytearray(self._unread), ""
        try:
            while len(answer) <= ANSWER_BYTES_MAX and (part := self._receive()):
                answer += part
        except TimeoutError:
            cut = "its end did not come in time"
        except OSError as error:
            cut = f"the connection broke ({error.strerror})"
        if len(answer) > ANSWER_BYTES_MAX:
            cut = f"it is longer than {ANSWER_BYTES_MAX} bytes, and the rest was not read"
        return bytes(answer[:ANSWER_BYTES_MAX]).decode(errors="replace"), cut

    def _receive(self) -> bytes:
        self._socket.settimeout(self._find_left_s())
        return self._socket.recv(PART_BYTES)

    def _find_left_s(self) -> float:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


@contextlib.contextmanager
def _connected(address: str, connect_s: float) -> Iterator[_Connection]:
    """Yield a connection; raise UnavailableError with the reason for what fails within."""
    host, port = parse_address(address)
    deadline_s = time.monotonic() + connect_s
    try:
        with socket.create_connection((host, port), timeout=connect_s) as connected:
            yield _Connection(connected, address, deadline_s)
    except TimeoutError as error:
        raise UnavailableError(f"{address} did not answer in time") from error
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            raise NothingListensError(f"nothing listens at {address}") from error
        raise UnavailableError(f"{address} cannot be reached: {error.strerror or error}") from error
