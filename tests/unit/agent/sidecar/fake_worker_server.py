"""A strict stand-in for torch's worker server on a unix socket: what it does not know it refuses, as torch's does."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

Answer = Callable[[dict[str, str]], bytes]

_REQUEST = re.compile(rb"POST /handler/(\w+)(?:\?([\w=&]*))? HTTP/1\.1\r\n")
KNOWN_PARAMETERS = {"includecollectives", "onlyactive"}


class FakeWorkerServer:
    """Answers on a thread of its own until `close`. `handlers` return the whole body; None closes without an answer."""

    def __init__(self, path: str, handlers: Mapping[str, Answer | None]) -> None:
        self._handlers = handlers
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                answer = self._answer(_receive_head(connection))
                if answer is not None:
                    with contextlib.suppress(OSError):  # the client has enough
                        connection.sendall(answer)

    def _answer(self, head: bytes) -> bytes | None:
        found = _REQUEST.match(head)
        if found is None or b"\r\nHost: " not in head or b"\r\nContent-Length: 0\r\n" not in head:
            return _response(b"400 Bad Request", b"")
        name, parameters = found[1].decode(), dict(parse_qsl((found[2] or b"").decode()))
        self.asked.append(name)
        if name not in self._handlers:
            return _response(b"404 Not Found", f"Handler {name} not found".encode())
        if not KNOWN_PARAMETERS.issuperset(parameters) or not {"true", "false"}.issuperset(parameters.values()):
            return _response(b"400 Bad Request", b"Unexpected parameter")
        handler = self._handlers[name]
        return None if handler is None else _response(b"200 OK", handler(parameters))


def _receive_head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(4096)
        if not part:
            break
        head += part
    return head


def _response(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def nccl_entry(record_id: int, created_ns: int, duration_ms: float | None = 0.05, **changes: object) -> dict[str, Any]:
    """Return an entry as the recorder of NCCL writes it (FlightRecorderDetail.hpp of torch 2.13): `duration_ms` is
    there once the watchdog has retired the collective, if it was timed; a time that is not known is 0.
    """
    completed_ns = 0 if duration_ms is None else created_ns + round(duration_ms * 1e6)
    timed = {} if duration_ms is None else {"duration_ms": duration_ms}
    return {
        "collective_seq_id": record_id + 1, **timed, "input_dtypes": ["Float"], "input_sizes": [[1000]],
        "is_p2p": False, "op_id": record_id + 1, "output_dtypes": ["Float"], "output_sizes": [[1000]],
        "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce",
        "record_id": record_id, "retired": duration_ms is not None,
        "state": "scheduled" if duration_ms is None else "completed", "thread_id": "140056159169408",
        "thread_name": "python3", "time_created_ns": created_ns, "time_discovered_completed_ns": completed_ns,
        "time_discovered_started_ns": 0, "timeout_ms": 600_000,
    } | changes  # fmt: skip


def coalesced_entries(record_id: int, created_ns: int, duration_ms: float | None = 0.05) -> list[dict[str, Any]]:
    """Return the entries of two all-reduces within a coalescing manager: members without events, which stay scheduled
    and are never retired, and the group's own, which has no sizes. All have the group's sequence number.
    """
    members = [
        nccl_entry(
            record_id + place, created_ns + place, None, collective_seq_id=record_id + 1, op_id=record_id + place
        )
        for place in (1, 2)
    ]
    nothing: dict[str, Any] = {"input_dtypes": [], "input_sizes": [], "output_dtypes": [], "output_sizes": []}
    group = nccl_entry(record_id + 3, created_ns + 3, duration_ms, collective_seq_id=record_id + 1, **nothing)
    return [*members, group | {"profiling_name": "nccl:coalesced"}]


def dump(*entries: dict[str, Any]) -> bytes:
    """Return a recorder's dump; `entries` is absent if there are none."""
    found: dict[str, Any] = {"entries": list(entries)} if entries else {}
    return json.dumps({**found, "nccl_comm_state": {}, "pg_config": {}, "pg_status": {}, "version": "2.10"}).encode()
