"""The collector that a load test measures: a real `rankscope serve` in a process of its own, and what it uses.

CPU time is the kernel's, whole and by thread, so it holds on a machine with other work too. Threads are told apart by
the names that they give themselves.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from bench.load_ranks import raise_open_files
from bench.overhead import clean_environment, end
from rankscope.collector.keys import ALLOWED, COLLECTOR, DEFAULT_CLIENT, make_keys
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.proc_stat import read_stat
from tests.integration.fault_figures import read_cpu_s, read_peak_bytes, read_resident_bytes
from tests.integration.serving import wait_for

START_S_MAX: Final = 60.0
SPARE_FILES: Final = 512
MIB: Final = 2**20
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """CPU seconds of the receiving process since its start by thread, and its resident memory in bytes, now and at its
    highest; and the same of its publisher, whole.
    """

    cpu_s: Mapping[str, float]
    resident_bytes: int
    resident_bytes_max: int
    publisher_cpu_s: float
    publisher_bytes_max: int

    @property
    def whole_cpu_s(self) -> float:
        """Of all threads."""
        return sum(self.cpu_s.values())


class LoadCollector:
    """Listens at ports that stay the same over `restart`. With keys, a store, and room for `ranks` ranks."""

    def __init__(self, folder: Path, ranks: int) -> None:
        make_keys(folder / "keys", [], force=False)
        keys = folder / "keys"
        self.keys = ClientKeys(
            read_public_key(str(keys / f"{COLLECTOR}.pub"), "collector_key_file"),
            read_key_pair(str(keys / f"{DEFAULT_CLIENT}.key"), "key_file"),
        )
        self._settings = {
            "key-file": str(keys / f"{COLLECTOR}.key"),
            "allowed-keys": str(keys / ALLOWED),
            "store": str(folder / "store.db"),
            "ranks-max": str(ranks),
        }
        self._listen, self._http_listen = "tcp://127.0.0.1:0", "127.0.0.1:0"
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        raise_open_files(ranks + SPARE_FILES)
        self.start()

    def start(self) -> None:
        """Start it. Raises TimeoutError when it does not say where it listens."""
        settings = {"listen": self._listen, "http-listen": self._http_listen, **self._settings}
        command = [sys.executable, "-m", "rankscope.collector", "serve", "--announce"]
        command += [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            stdin=subprocess.DEVNULL,
            # Of two steps in 20 s: so that there is a verdict within a minute.
            env={**clean_environment(), "RANKSCOPE_SERVE_DETECT_STEPS_MIN": "4"},
        )
        stdout = self._child.stdout
        line = b""
        if stdout is not None and select.select([stdout], [], [], START_S_MAX)[0]:
            line = stdout.readline()
        if not line:
            log = self.read_log()
            self.close()
            raise TimeoutError(f"the collector did not say where it listens: {log}")
        announced = json.loads(line)
        self.endpoint: str = announced["endpoint"]
        self.url: str = announced["metrics_url"].removesuffix("/metrics")
        self._listen, self._http_listen = self.endpoint, self.url.removeprefix("http://")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def kill(self) -> None:
        """SIGKILL; it is gone when this returns."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        self._hang_up()

    def read_usage(self) -> Usage:
        """What it has used up to now."""
        folder = Path(f"/proc/{self.pid}")
        cpu_s: dict[str, float] = {}
        for task in folder.glob("task/*"):
            stat = read_stat(str(task))
            if stat is not None and stat.cpu_ticks is not None:  # else it has just ended
                cpu_s[stat.name] = cpu_s.get(stat.name, 0.0) + stat.cpu_ticks / _TICKS_PER_S
        return Usage(cpu_s, read_resident_bytes(self.pid), read_peak_bytes(self.pid), *read_publisher(self.pid))

    def read_log(self) -> str:
        """The end of what it has said."""
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), 4096, max(0, size - 4096)).decode(errors="replace")

    def close(self) -> None:
        """End it: asked, then made to."""
        end(self._child)
        self._hang_up()
        self._stderr.close()

    def _hang_up(self) -> None:
        if self._child.stdout is not None:
            self._child.stdout.close()


def read_publisher(pid: int) -> tuple[float, int]:
    """CPU seconds of the publisher of a collector so far, and its resident memory in bytes at its highest. A collector
    that has just said where it listens may still be starting it.
    """
    collector = psutil.Process(pid)
    (publisher,) = wait_for(lambda: collector.children() or None, lambda: f"{pid} has no publisher", START_S_MAX)
    return read_cpu_s(publisher.pid), read_peak_bytes(publisher.pid)
