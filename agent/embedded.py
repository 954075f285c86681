"""Starts a collector on rank 0 if none is configured, and passes its address to the other ranks.

The ranks exchange the address through the training's own store at MASTER_ADDR:MASTER_PORT, so that any free port works
and two runs on one machine do not mix. Everything runs on a separate thread; without a collector training continues.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import IO, Any

from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.identity import drop_rank_variables
from rankscope.agent.shutdown.torch_threads import TorchCallGate
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import RankIdentity

START_S_MAX = 30.0
"""Longest time for a collector to start; 1 to 3 s are usual."""
STORE_TIMEOUT_S = 20.0
POLL_S = 0.2


class EmbeddedCollector:
    """A collector in a child process, which ends with this process."""

    def __init__(
        self, child: "subprocess.Popen[str]", address: CollectorAddress, url: str, token: str = "", port_wanted: int = 0
    ) -> None:
        self._child = child
        self._url = url
        self._query = f"?token={token}" if token else ""
        self._port_wanted = port_wanted
        self.address = address
        """Its address on this machine; other machines use another host with the same port and keys."""

    @classmethod
    def start(cls, *, one_machine: bool, metrics_port: int) -> "EmbeddedCollector":
        """Start it and wait until it listens. Raise UnavailableError with its output otherwise.

        It makes keys and a token for this run, and writes them to its stdout, a pipe. Also on one machine: other users
        of it reach loopback, and could report in the name of any rank.
        """
        host = "127.0.0.1" if one_machine else "0.0.0.0"  # noqa: S104 - the other machines' ranks must reach it
        command = build_child_command(
            sys.executable, "rankscope.collector", "serve", "--embedded", "--fresh-keys",
            "--parent-pid", str(os.getpid()),
            "--listen", f"tcp://{host}:0",
            "--http-listen", f"127.0.0.1:{metrics_port}",
        )  # fmt: skip
        # In a new session, so that Ctrl-C in the terminal ends the ranks but not the collector, which still receives
        # their last reports.
        child = subprocess.Popen(  # noqa: S603 - the agent's own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=drop_rank_variables(os.environ),
        )
        try:
            line = _read_line(child.stdout, START_S_MAX)
            address = CollectorAddress.from_text(line)
            here = f"tcp://127.0.0.1:{address.endpoint.rpartition(':')[2]}"
            announced = json.loads(line)
            url = announced["metrics_url"].removesuffix("/metrics")
            return cls(child, CollectorAddress(here, address.keys), url, announced["http_token"], metrics_port)
        except (ValueError, KeyError, OSError) as error:
            child.kill()
            child.wait()
            raise UnavailableError(f"the embedded collector did not start ({error})") from error

    @property
    def page_url(self) -> str:
        """Where the live page is. The token in it lets whoever has this address read; it is empty where the settings
        name a token.
        """
        return f"{self._url}/{self._query}"

    @property
    def metrics_url(self) -> str:
        """Where /metrics is, with the token as above."""
        return f"{self._url}/metrics{self._query}"

    def describe_port_change(self) -> str:
        """Return a remark for the user if the metrics are not at the configured port, else an empty text."""
        has_moved = self._port_wanted and not self._url.endswith(f":{self._port_wanted}")
        return f" (a free port: {self._port_wanted} could not be used)" if has_moved else ""

    def wait(self, seconds: float) -> None:
        """Wait until it ends, which it does after the goodbye of every rank; terminate it after `seconds`."""
        for number, patience_s in ((None, seconds), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
            if number is not None:
                self._child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(patience_s)
                return


def _read_line(stream: IO[str] | None, seconds: float) -> str:
    if stream is None or not select.select([stream], [], [], seconds)[0]:
        raise OSError(f"no answer in {seconds:.0f} s")
    with stream:
        line = next((text for text in stream if text.startswith("{")), "")  # a sitecustomize.py may print, too
    if not line:
        raise OSError("it ended before it printed its address")
    return line


class Rendezvous:
    """The training's key-value store, which passes the collector's address and keys from rank 0 to the others."""

    def __init__(
        self, identity: RankIdentity, environment: Mapping[str, str], stopping: threading.Event, gate: TorchCallGate
    ) -> None:
        self._key = f"rankscope/{identity.run}/{identity.restart_count}/collector"
        self._address = environment.get("MASTER_ADDR", "")
        self._port = environment.get("MASTER_PORT", "")
        self._launcher_has_store = environment.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
        self._stopping = stopping
        self._gate = gate

    @property
    def is_possible(self) -> bool:
        """True if the address of the store is known."""
        return bool(self._address) and self._port.isdecimal()

    @property
    def master_address(self) -> str:
        """Host of rank 0."""
        return self._address

    def publish(self, address: CollectorAddress) -> None:
        """Write the collector's address to the store."""
        store = self._connect()
        if store is not None:
            with self._gate:
                store.set(self._key, address.to_text())

    def find(self) -> CollectorAddress | None:
        """Wait for the address of rank 0's collector; return None if the process ends before.

        Raise ValueError if the stored text is no address.
        """
        store = self._connect()
        while store is not None and not self._stopping.is_set():
            with self._gate:
                text = store.get(self._key) if store.check([self._key]) else None
            if text is not None:
                return CollectorAddress.from_text(text.decode())
            self._stopping.wait(POLL_S)
        return None

    def _connect(self) -> Any:
        """Return a client of the store once it exists: torchrun creates it at the start, otherwise the script does."""
        import torch.distributed as dist  # noqa: PLC0415 - the user's torch
        from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415

        while not self._launcher_has_store and not dist.is_initialized():
            if self._stopping.wait(POLL_S):
                return None
        with self._gate:
            return TCPStore(
                self._address,
                int(self._port),
                is_master=False,
                timeout=timedelta(seconds=STORE_TIMEOUT_S),
                wait_for_workers=False,
            )
