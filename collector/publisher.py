"""Assemble the publisher: HTTP server, metrics, API and live page from the messages of the service.

`rankscope serve` runs it in a process of its own (PublisherProcess), an embedded collector in a thread
(PublisherThread). It ends when the connection to the service does.
"""

import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import IO, Any, Final, TypeVar, cast

import msgspec

from rankscope.collector.captures.capture import Capture, CaptureRefusal, CaptureRequest, find_captures_folder
from rankscope.collector.config import CollectorConfig, find_beside_store, find_store
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.log_lines import start_logging
from rankscope.collector.process_tuning import (
    limit_malloc_arenas,
    name_this_thread,
    raise_gc_threshold,
    start_malloc_trim,
)
from rankscope.collector.publish.http_auth import HttpAuth, read_http_auth
from rankscope.collector.publish.http_listener import HttpListener
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.publish.metrics.pages import MetricPages
from rankscope.collector.publish.otlp_push import make_push
from rankscope.collector.publish.routes import PageSettings
from rankscope.collector.publish.snapshot_messages import (
    CaptureAnswer,
    CaptureWanted,
    DumpAnswer,
    DumpWanted,
    SettingsAnswer,
    SettingsWanted,
    SnapshotDecoder,
    SnapshotMessage,
    Update,
)
from rankscope.collector.reports.run_report import report_as_json
from rankscope.collector.runs.live_settings import RunSettings, SettingsRefusal, WantedChange
from rankscope.measure.child_command import build_child_command
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.settings import find_constants, find_settings

LOG = logging.getLogger("rankscope.collector")

DUMP_S_MAX: Final = 10.0
"""Longest wait for a description of the internal state of a run (`runs/run_dump.py`)."""
ORDER_S_MAX: Final = 10.0
"""Longest wait until the service has taken or refused the order of a capture."""

T = TypeVar("T")


class Publisher:
    """Answers HTTP requests from the last messages. `first` is the first one, with a snapshot: no request is answered
    before it. `send` sends a message to the service, `read_block` receives the next block of a snapshot.
    """

    def __init__(
        self,
        config: CollectorConfig,
        listener: HttpListener,
        access: HttpAuth,
        *,
        send: Callable[[bytes], None],
        read_block: Callable[[], bytes],
        first: Update,
    ) -> None:
        self._send = send
        self._read_block = read_block
        self._health, self._health_ns = first.health, time.monotonic_ns()
        self._incidents = first.incidents or ()
        self._decoder = SnapshotDecoder()
        self._snapshot = self._decoder.decode(cast("SnapshotMessage", first.snapshot), read_block, {})
        self._numbers = itertools.count()
        self._asked: dict[int, Future[Any]] = {}
        self._captures = first.captures or ()
        self._push = make_push(config, listener.socket.getsockname()[1], lambda: self._snapshot)
        store, beside = find_store(config), find_beside_store(config)
        self._http = HttpServer(
            listener,
            lambda: self._snapshot,
            lambda: self._incidents,
            is_healthy=self._find_health_problem,
            is_ready=lambda: "stopping" if self._health.is_stopping else None,
            find_degradation=lambda: self._health.degradation,
            access=access,
            read_report=None if store is None else lambda run: report_as_json(store, run),
            store=store,
            metric_pages=MetricPages(metrics_ranks_max=config.metrics_ranks_max),
            read_dump=self._ask_for_dump,
            read_time_slices=self._decoder.find_time_slices,
            order_capture=self._order_capture,
            read_captures=lambda: self._captures,
            captures_folder=None if beside is None else find_captures_folder(beside),
            order_settings=self._order_settings,
            page_settings=PageSettings(
                listen=config.listen,
                needs_keys=bool(config.key_file),
                grafana_url=config.grafana_url.rstrip("/"),
                runbooks_url=config.runbooks_url.rstrip("/"),
            ),
        )

    def start(self) -> None:
        """Begin to push metrics, where the settings ask for it."""
        if self._push is not None:
            self._push.start()

    def handle(self, message: Update | DumpAnswer | CaptureAnswer | SettingsAnswer) -> None:
        """Handle a message of the service."""
        match message:
            case Update(health, incidents, snapshot, captures):
                self._health, self._health_ns = health, time.monotonic_ns()
                if incidents is not None:
                    self._incidents = incidents
                if captures is not None:
                    self._captures = captures
                if snapshot is not None:
                    self._snapshot = self._decoder.decode(
                        snapshot, self._read_block, self._http.refused, self._http.nodes,
                        None if self._push is None else self._push.counts,
                    )  # fmt: skip
                    self._http.note_snapshot()
            case DumpAnswer(number, answer) | CaptureAnswer(number, answer) | SettingsAnswer(number, answer):
                waiting = self._asked.pop(number, None)
                if waiting is not None:
                    waiting.set_result(answer)

    def close(self) -> None:
        """Free the port, and push what was not pushed yet."""
        self._http.close()
        if self._push is not None:
            self._push.close()

    def _find_health_problem(self) -> str | None:
        return self._health.find_problem(time.monotonic_ns() - self._health_ns)

    def _ask_for_dump(self, run: str) -> bytes | None:
        """Return the internal state of a run from the service. Raises UnavailableError where it does not answer."""
        return self._ask(lambda number: DumpWanted(number, run), Future[bytes | None](), DUMP_S_MAX)

    def _order_capture(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        """Order a capture from the service. Raises UnavailableError where it does not answer: then it may be taken."""
        return self._ask(lambda number: CaptureWanted(number, request), Future[Capture | CaptureRefusal](), ORDER_S_MAX)

    def _order_settings(self, wanted: WantedChange) -> RunSettings | SettingsRefusal:
        """Change settings by the service. Raises UnavailableError where it does not answer: then they may be."""
        return self._ask(
            lambda number: SettingsWanted(number, wanted), Future[RunSettings | SettingsRefusal](), ORDER_S_MAX
        )

    def _ask(
        self, build: Callable[[int], DumpWanted | CaptureWanted | SettingsWanted], found: Future[T], wait_s: float
    ) -> T:
        number = next(self._numbers)
        self._asked[number] = found
        try:
            self._send(msgspec.msgpack.encode(build(number)))
            return found.result(wait_s)
        except (OSError, TimeoutError) as error:
            raise UnavailableError(f"the collector's service has not answered within {wait_s:.0f} s") from error
        finally:
            self._asked.pop(number, None)


def run_publisher(connection: Connection, config: CollectorConfig, listener: HttpListener) -> None:
    """Publish until the service closes the connection. Raises SettingError for files of the settings that have become
    unusable since the service read them.
    """
    sending = threading.Lock()

    def send(message: bytes) -> None:
        with sending:
            connection.send_bytes(message)

    access = read_http_auth(
        token_file=config.http_token_file,
        control_token_file=config.http_control_token_file,
        certificate_file=config.http_certificate_file,
        key_file=config.http_key_file,
    )
    if listener.token:
        access = access._replace(token=listener.token, is_in_address=True)
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as ends:
        publisher = Publisher(
            config, listener, access, send=send, read_block=connection.recv_bytes, first=connection.recv()
        )
        ends.callback(publisher.close)
        publisher.start()
        while True:
            publisher.handle(connection.recv())


# -- in a thread ------------------------------------------------------------------------------------------------------


class PublisherThread:
    """A publisher in a thread of this process."""

    def __init__(self, connection: Connection, config: CollectorConfig, listener: HttpListener) -> None:
        self._connection = Connection(os.dup(connection.fileno()))
        # The server closes its socket when it ends; the port is the service's.
        self._listener = listener._replace(socket=listener.socket.dup())
        self._config = config
        self._end = ""
        self._thread = threading.Thread(target=self._run, name="rankscope-publisher", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Do nothing: a thread ends by itself when its connection is closed."""

    def describe_end(self) -> str:
        """Return how it ended, in words."""
        return f"ended{self._end}"

    def _run(self) -> None:
        name_this_thread("publisher")
        try:
            run_publisher(self._connection, self._config, self._listener)
        except Exception as error:  # noqa: BLE001 - it is noted
            FaultLog(SystemClock()).note("publisher", "the publisher failed")
            self._end = f" ({error})"
        finally:
            self._connection.close()
            self._listener.socket.close()


# -- in a process -----------------------------------------------------------------------------------------------------


class _Settings(msgspec.Struct):
    """The standard input of a publisher process, as JSON: the settings of the collector by key, the host and the token
    of its address, the descriptors of its connection and of its listening socket, and the levels to log from.
    """

    config: dict[str, Any]
    host: str
    token: str
    connection_fd: int
    listener_fd: int
    log_level: int
    own_log_level: int


class PublisherProcess:
    """A publisher in a child process."""

    def __init__(self, connection: Connection, config: CollectorConfig, listener: HttpListener) -> None:
        values = {
            key: getattr(config, key) for key, _, _ in (*find_settings(type(config)), *find_constants(type(config)))
        }
        levels = (logging.getLogger(name).getEffectiveLevel() for name in ("", "rankscope"))
        fds = connection.fileno(), listener.socket.fileno()
        settings = msgspec.json.encode(_Settings(values, listener.host, listener.token, *fds, *levels))
        self._child = subprocess.Popen(  # noqa: S603 - our own program
            build_child_command(sys.executable, "rankscope.collector.publisher"),
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        with contextlib.suppress(OSError), cast("IO[bytes]", self._child.stdin) as stdin:  # it may have ended already
            stdin.write(settings)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        return self._child.returncode is not None

    def kill(self) -> None:
        """End it now."""
        self._child.kill()
        self._child.wait()

    def describe_end(self) -> str:
        """Return how it ended, in words."""
        status = self._child.returncode or 0
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def main() -> int:
    """Publish in this process until the service is gone; return the exit status."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=_Settings)
    # They are sent to all processes of a terminal or a service manager: this one ends with the service.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    start_logging(settings.log_level, 0)
    logging.getLogger("rankscope").setLevel(settings.own_log_level)
    limit_malloc_arenas()
    raise_gc_threshold()
    start_malloc_trim()
    listener = HttpListener(socket.socket(fileno=settings.listener_fd), settings.host, settings.token)
    try:
        run_publisher(Connection(settings.connection_fd), CollectorConfig(**settings.config), listener)
    except SettingError as error:
        LOG.error("%s", error)  # noqa: TRY400 - expected
        return 1
    return 0


if __name__ == "__main__":
    # At once: there is nothing to save, and the port must be free for the next collector.
    os._exit(main())
