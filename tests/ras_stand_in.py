"""A stand-in for NCCL's RAS service on a free port: what it does not know it refuses, as NCCL does.

Written after the protocol of NCCL 2.24 to 2.30: commands in any case, a line each; `SET FORMAT` from 2.28.7; after a
status the connection is closed.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

MIB = 1024 * 1024
HOST = "127.0.0.1"

Serve = Callable[[socket.socket], None]


class FakeRas:
    """Serves every connection by `serve`, each on a thread of its own, until `close`."""

    def __init__(self, serve: Serve, host: str = HOST) -> None:
        self._serve = serve
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        port = self._socket.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.connections = 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and close whatever is open."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connected)
            threading.Thread(target=self._run, args=(connected,), daemon=True).start()

    def _run(self, connected: socket.socket) -> None:
        with connected, contextlib.suppress(OSError):  # the client has enough
            self._serve(connected)


@contextlib.contextmanager
def ras(serve: Serve, host: str = HOST) -> Iterator[FakeRas]:
    """A service for the time of the block."""
    service = FakeRas(serve, host)
    try:
        yield service
    finally:
        service.close()


class Nccl:
    """A server as NCCL's: `text` is its answer, `json` that in JSON, None for a version without. `commands` are those
    it got. With `sends` the answer is sent by that instead of at once.
    """

    def __init__(
        self, text: str = "", json: str | None = None, sends: Callable[[socket.socket, bytes], None] | None = None
    ) -> None:
        self._text = text
        self._json = json
        self._sends = sends or (lambda connected, answer: connected.sendall(answer))
        self.commands: list[str] = []

    def __call__(self, connected: socket.socket) -> None:
        """Serve one connection."""
        answer = self._text
        with connected.makefile("rb") as lines:
            for line in lines:
                command = line.decode().strip()
                self.commands.append(command)
                match command.lower().split():
                    case ["client", "protocol", _]:
                        reply = "SERVER PROTOCOL 2"
                    case ["timeout", seconds] if seconds.isdigit():
                        reply = "OK"
                    case ["timeout", seconds]:
                        reply = f"ERROR: Invalid timeout value {seconds}"
                    case ["set", "format", "json"] if self._json is not None:
                        reply, answer = "OK", self._json
                    case ["verbose", "status"]:
                        self._sends(connected, answer.encode())
                        return
                    case _:
                        reply = f"ERROR: Unknown command {command}"
                connected.sendall(f"{reply}\n".encode())


def refused_address() -> str:
    """An address at which nothing listens."""
    with socket.create_server((HOST, 0)) as probe:
        return f"{HOST}:{probe.getsockname()[1]}"


# -- answers ----------------------------------------------------------------------------------------------------------


def present(rank: int, counts: Mapping[str, int], pid: int, host: str = HOST, **status: int) -> dict[str, Any]:
    """A rank with data, in JSON."""
    healthy = {
        "init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False
    }  # fmt: skip
    return {
        "rank": rank, "host": host, "pid": pid, "cuda_dev": rank, "nvml_dev": rank, "status": healthy | status,
        "collective_counts": {op: counts.get(op, 0) for op in ("Broadcast", "Reduce", "AllGather", "AllReduce")},
    }  # fmt: skip


def missing(rank: int, pid: int, host: str = HOST, *, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    """A rank without data, in JSON."""
    return {
        "rank": rank, "host": host, "pid": pid, "cuda_dev": rank, "nvml_dev": rank,
        "status": {"unresponsive": unresponsive, "considered_dead": dead},
    }  # fmt: skip


def communicator(
    ranks: Sequence[dict[str, Any]], lacking: Sequence[dict[str, Any]] = (), name: str = "0xcf264af53edbe986"
) -> dict[str, Any]:
    """A communicator, in JSON."""
    return {
        "hash": name, "secondary_hash": "0x1:0x2", "size": len(ranks) + len(lacking), "ranks_count": len(ranks),
        "missing_ranks_count": len(lacking), "ranks": list(ranks), "missing_ranks": list(lacking),
    }  # fmt: skip


def to_json(*communicators: dict[str, Any], timeouts: int = 0) -> str:
    """The whole answer in JSON."""
    return json.dumps(
        {
            "nccl_version": "2.29.2",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": "2026-11-26 10:00:00",
            "communicators_count": len(communicators),
            "communicators": communicators,
            "ras": {"collection_time_sec": 0.012, "timeouts_count": timeouts},
        },
        indent=2,
    )


TEXT_HEAD = """\
NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          2            1          8        8

Communicators..."""
TABLE = """ (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
ERRORS = "\nErrors\n======\n\n"
WARNINGS = "Warnings\n========\n\n"
HEALTHY_TEXT = (
    f"{TEXT_HEAD}{TABLE}    0         3         4         2         8         8   RUNNING      OK\n{ERRORS}{WARNINGS}"
)
"""Three communicators of 8 ranks, in which nobody differs."""
