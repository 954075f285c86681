"""Bind the port of the HTTP server, apart from the server: the port outlives the process that answers at it."""

import errno
import socket
import time
from typing import Final, NamedTuple

from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.settings import find_address_problem

PORT_WAIT_S: Final = 1.0
"""Longest wait for a port: the publisher of a killed collector keeps it open for some milliseconds more."""
RETRY_S: Final = 0.02
CONNECTIONS_WAITING_MAX: Final = 64
"""Connections that wait to be accepted, also while nobody accepts them."""
EVERYWHERE: Final = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104 - compared


class HttpListener(NamedTuple):
    """A listening socket, the host of its address as the setting has it, and the token that its address carries (empty:
    none, the settings may name one).
    """

    socket: socket.socket
    host: str
    token: str = ""

    def url(self, *, is_secure: bool) -> str:
        """Return `http://HOST:PORT` with the real port; the machine's name where it listens everywhere."""
        host = socket.gethostname() if self.host in EVERYWHERE else self.host
        return f"http{'s' if is_secure else ''}://{host}:{self.socket.getsockname()[1]}"


def read_port(address: str) -> int:
    """Return the port of an address to listen at, `HOST:PORT`; 0 for any free one.

    >>> read_port("127.0.0.1:18491"), read_port("[::1]:*"), read_port("*:0")
    (18491, 0, 0)
    """
    return int(address.rpartition(":")[2].replace("*", "0"))


def listen_http(address: str, wait_s: float = 0.0) -> HttpListener:
    """Listen at `address`, `HOST:PORT`; port 0 is a free one. Raises SettingError for what is no address,
    UnavailableError where nothing can listen; a port that is in use is waited for up to `wait_s`.
    """
    problem = find_address_problem(address, listening=True)
    if problem is not None:
        raise SettingError(f"the collector's HTTP address is {address!r}; {problem}.")
    host = address.rpartition(":")[0]
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    listening = socket.socket(family)
    try:
        # Not SO_REUSEPORT: two collectors on one port would each get half of the scrapes.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listening, ("" if host == "*" else host.strip("[]"), read_port(address)), wait_s)
        listening.listen(CONNECTIONS_WAITING_MAX)
    except OSError as error:
        listening.close()
        raise UnavailableError(
            f"the collector's HTTP server cannot listen at {address}: {error.strerror}. Stop what listens there, "
            "or give another address of this machine."
        ) from error
    return HttpListener(listening, host)


def _bind(listening: socket.socket, address: tuple[str, int], wait_s: float) -> None:
    end_s = time.monotonic() + wait_s
    while True:
        try:
            listening.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end_s:
                raise
            time.sleep(RETRY_S)
        else:
            return
