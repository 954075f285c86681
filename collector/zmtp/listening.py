"""Where a server listens: a socket at `tcp://HOST:PORT` or `ipc:///PATH`."""

import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Final

IPC: Final = "ipc://"
TCP: Final = "tcp://"


class Listening:
    """Listens at an endpoint, with the port 0 or `*` at a free one, with the host `*` at every address of IPv4, with
    `[::]` of both. Up to `backlog` connections wait to be accepted; the kernel's net.core.somaxconn caps it.

    Raises OSError when that is not possible.
    """

    def __init__(self, endpoint: str, backlog: int) -> None:
        self._path = Path(endpoint.removeprefix(IPC)) if endpoint.startswith(IPC) else None
        self.socket = _bind_path(self._path) if self._path else _bind_address(endpoint.removeprefix(TCP))
        self.socket.listen(backlog)
        self.socket.setblocking(False)  # noqa: FBT003 - socket's own

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port."""
        if self._path:
            return f"{IPC}{self._path}"
        host, port = self.socket.getsockname()[:2]
        return f"{TCP}[{host}]:{port}" if self.socket.family == socket.AF_INET6 else f"{TCP}{host}:{port}"

    def close(self) -> None:
        """Listen no more. A second call does nothing."""
        if self._path and self.socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.socket.close()


def _bind_address(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = {"*": "0.0.0.0"}.get(host, host)  # noqa: S104 - whoever says * means it
    # A name is one of IPv4: agents look names up for that too.
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    found = socket.getaddrinfo(host.strip("[]"), 0 if port == "*" else int(port), family, socket.SOCK_STREAM)
    family, kind, protocol, _, where = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        _set_up_for_connections(listening)
        listening.bind(where)
    except OSError:
        listening.close()
        raise
    return listening


def _set_up_for_connections(listening: socket.socket) -> None:
    """What Linux gives each connection that it accepts, since the listening socket has it."""
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer whose machine is gone leaves a connection that looks open. The kernel asks after a minute of silence and
    # closes it after two, also when something that was sent there is not confirmed: by itself it would send that again
    # for a quarter of an hour.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)


def _bind_path(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_leftover(path)
        listening.bind(os.fspath(path))
    except OSError:
        listening.close()
        raise
    return listening


def _remove_leftover(path: Path) -> None:
    """What a server that was killed has left where it listened. One that lives stays where it is."""
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        try:
            visitor.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
