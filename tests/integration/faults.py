"""What the fault tests share: the identity as anybody can check it on the page, ranks in processes, a bad network.

The long half, `make soak`, is the same tests with longer faults: SOAK=1 in the environment.
"""

import contextlib
import os
import queue
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.serving import DEADLINE_S, Api, wait_for
from tests.integration.torchrun import CHECKOUT

IS_SOAK: Final = os.environ.get("SOAK") == "1"
ROOT: Final = Path(__file__).parents[2]
LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
LIGHT_RANK: Final = Path(__file__).parent / "scripts" / "light_rank.py"


def sized(fast: int, soak: int) -> int:
    """How much of something: in `make test`, and in `make soak`."""
    return soak if IS_SOAK else fast


@dataclass(frozen=True)
class PageAccount:
    """The account of one rank's step records, from nothing but the page of metrics."""

    made: int
    published: int
    elsewhere: int
    overwritten: int
    dropped: int
    late: int
    buffered: int
    gaps: int

    @property
    def unaccounted(self) -> int:
        """0, at any time."""
        lost = self.overwritten + self.dropped + self.late
        return self.made - self.published - self.elsewhere - lost - self.buffered


def read_accounts(api: Api, run: str) -> dict[int, PageAccount]:
    """What the page says of each rank of a run that has reported."""
    return to_accounts(
        {
            (sample.name, ",".join(f'{name}="{value}"' for name, value in sample.labels.items())): sample.value
            for family in text_string_to_metric_families(api.read_metrics())
            for sample in family.samples
        },
        run,
    )


def to_accounts(samples: Mapping[tuple[str, str], float], run: str) -> dict[int, PageAccount]:
    """The accounts of a run's ranks, from the samples of a page by name and labels, both as they stand there."""
    found: dict[int, dict[str, int]] = {}
    for (name, text), value in samples.items():
        if name.startswith("rankscope_step_records_") or name == "rankscope_report_gaps_total":
            labels = dict(LABEL.findall(text))
            if labels.get("run") == run and "rank" in labels:
                found.setdefault(int(labels["rank"]), {})[name + labels.get("reason", "")] = int(value)
    return {
        rank: PageAccount(
            made=counts["rankscope_step_records_created_total"],
            published=counts["rankscope_step_records_published_total"],
            elsewhere=counts["rankscope_step_records_acked_by_previous_collector_total"],
            overwritten=counts["rankscope_step_records_lost_totaloverwritten"],
            dropped=counts["rankscope_step_records_lost_totaldropped_in_reports"],
            late=counts["rankscope_step_records_lost_totallate"],
            buffered=counts["rankscope_step_records_buffered"],
            gaps=counts["rankscope_report_gaps_total"],
        )
        for rank, counts in found.items()
        if "rankscope_step_records_created_total" in counts
    }


def check_identity(api: Api, run: str) -> dict[int, PageAccount]:
    """Every rank's account as the page has it now, after it was found to add up."""
    accounts = read_accounts(api, run)
    assert {rank: account.unaccounted for rank, account in accounts.items()} == dict.fromkeys(accounts, 0), accounts
    return accounts


def wait_for_accounts(api: Api, run: str, made: dict[int, int]) -> dict[int, PageAccount]:
    """The accounts once the page knows of that many step records of each rank. They add up on every page until then."""
    seen: list[dict[int, PageAccount]] = [{}]

    def look() -> dict[int, PageAccount] | None:
        seen[0] = check_identity(api, run)
        is_there = all(rank in seen[0] and seen[0][rank].made >= count for rank, count in made.items())
        return seen[0] if is_there else None

    return wait_for(look, lambda: f"awaited {made}, the page has {seen[0]}")


class RankProcess:
    """A light rank in a process of its own. `prefix` is what to start it by: a network namespace, say."""

    def __init__(self, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self._child = subprocess.Popen(
            [*prefix, sys.executable, str(LIGHT_RANK), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": CHECKOUT},
        )
        self.pid = self._child.pid
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.boot_id = self._next_line()
        self.last_report = self.made = 0

    def wait_for_report(self, sequence: int) -> None:
        """Wait until it has made that report."""
        while self.last_report < sequence:
            number, made = self._next_line().split()
            self.last_report, self.made = int(number), int(made)

    def wait_for_reports(self, count: int) -> None:
        """Wait until it has made so many more."""
        while not self._lines.empty():
            self.wait_for_report(self.last_report + 1)
        self.wait_for_report(self.last_report + count)

    def kill(self) -> None:
        """SIGKILL; when it returns the process is gone, and everything it printed is known."""
        self._child.kill()
        self._end()

    def stop(self) -> None:
        """Have it send what is left and say goodbye, and wait for that."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        self._end()

    def close(self) -> None:
        """Make sure that it is gone."""
        if self._child.poll() is None:
            self.kill()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _end(self) -> None:
        self._child.wait(DEADLINE_S)
        while (line := self._next_line()) != "":
            self.last_report, self.made = (int(number) for number in line.split())

    def _next_line(self) -> str:
        try:
            return self._lines.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"the rank says nothing; it had made {self.last_report} reports") from None

    def _read(self) -> None:
        stdout = self._child.stdout
        assert stdout is not None
        for line in stdout:
            self._lines.put(line.strip())
        self._lines.put("")


@contextlib.contextmanager
def ranks_of(processes: list[RankProcess]) -> Iterator[list[RankProcess]]:
    """Processes that do not outlive the block."""
    try:
        yield processes
    finally:
        for process in processes:
            process.close()


class BadNetwork:
    """A TCP proxy in front of a collector: every piece of data takes `delay_s`, and with `loss_ratio` its connection
    breaks instead, with all that is on the way. (TCP itself repairs lost packets; what reaches a program is delay, and
    connections that end.) Seeded: the same connections break at the same pieces. After `mend` none breaks any more.
    """

    def __init__(self, port: int, *, delay_s: float, loss_ratio: float, seed: int) -> None:
        self._target = ("127.0.0.1", port)
        self._delay_s = delay_s
        self._loss_ratio = loss_ratio
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_mended = threading.Event()
        self.broken = 0
        """Connections that were broken."""
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def mend(self) -> None:
        """Break no more connections; what is delayed stays so."""
        self._is_mended.set()

    def close(self) -> None:
        """Break what is left."""
        self._stopping.set()
        for thread in list(self._threads):
            thread.join()
        self._listener.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):  # nobody came, or the collector is away
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                for source, sink in ((near, far), (far, near)):
                    source.settimeout(0.02)
                    self._start(self._carry, source, sink, random.Random(self._chance.random()))

    def _carry(self, source: socket.socket, sink: socket.socket, chance: random.Random) -> None:
        on_the_way: list[tuple[float, bytes]] = []
        with contextlib.suppress(OSError), source, sink:
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    piece = source.recv(65_536)
                    if not piece:
                        return
                    if chance.random() < self._loss_ratio and not self._is_mended.is_set():
                        self.broken += 1
                        return
                    on_the_way.append((time.monotonic() + self._delay_s, piece))
                while on_the_way and on_the_way[0][0] <= time.monotonic():
                    sink.sendall(on_the_way.pop(0)[1])
