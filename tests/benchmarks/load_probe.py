"""Looks at a collector under load from outside: how soon a report is seen, how soon a peer is answered, how long a
scrape takes. Each look has a connection and a thread of its own in the process of the test.
"""

import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final, NamedTuple

import zmq

from rankscope.agent.report.builder import Interval, ReportBuilder
from rankscope.measure.codec import decode, encode
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import ClockPing, ClockPong, Refused, Welcome
from rankscope.measure.records import Losses
from rankscope.uplink.curve_client import set_keys
from tests.benchmarks.load_reports import build_hello

RUN: Final = "probe"
PING_MS: Final = 25
REPORT_S: Final = 0.25
LOOK_S: Final = 0.1
SCRAPE_S: Final = 15.0
ANSWER_S_MAX: Final = 60.0
HTTP_S_MAX: Final = 120.0
_SEEN: Final = re.compile(rb'^rankscope_steps_made_total\{(?=[^}]*run="probe")[^}]*\} (\d+)', re.MULTILINE)


class Scrape(NamedTuple):
    """One answer of the collector over HTTP."""

    path: str
    seconds: float
    size_bytes: int


class Looks(NamedTuple):
    """What was seen, in ns but for the scrapes. Visible: from a report's making to a page that has it."""

    visible_ns: list[int]
    answered_ns: list[int]
    scrapes: list[Scrape]


class Probe:
    """Two more ranks, of a run of their own: rank 0 reports, rank 1 says Hello again and again."""

    def __init__(self, endpoint: str, url: str, keys: ClientKeys, *, scrapes: bool = True) -> None:
        self._endpoint, self._url, self._keys = endpoint, url, keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._ends = threading.Event()
        self._made_ns: dict[int, int] = {}
        self._looks = Looks([], [], [])
        self._failures: list[BaseException] = []
        works = (self._ping, *((self._report, self._look, self._scrape) if scrapes else ()))
        self._threads = [threading.Thread(target=self._contain, args=(work,), daemon=True) for work in works]

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def end(self) -> Looks:
        """What was seen. Raises what went wrong while looking."""
        self._ends.set()
        for thread in self._threads:
            thread.join(HTTP_S_MAX)
        self._context.destroy(linger=0)
        if self._failures:
            raise self._failures[0]
        return self._looks

    def _contain(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the thread that asks for the looks raises it
            self._failures.append(error)

    def _connect(self, rank: int) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, _boot(rank).encode())
        dealer.setsockopt(zmq.LINGER, 0)
        set_keys(dealer, self._keys)
        dealer.connect(self._endpoint)
        self._greet(dealer, rank)
        return dealer

    def _greet(self, dealer: "zmq.Socket[bytes]", rank: int) -> None:
        """Say Hello and wait for the Welcome; the clock's pings are answered, all else is passed over."""
        dealer.send(encode(build_hello(RUN, rank, 2, _boot(rank))))
        while True:
            if not dealer.poll(round(ANSWER_S_MAX * 1000)):
                raise TimeoutError(f"no Welcome within {ANSWER_S_MAX} s")
            match decode(dealer.recv()):
                case Welcome():
                    return
                case ClockPing(job_ns=job_ns):
                    dealer.send(encode(ClockPong(job_ns=job_ns, host_ns=time.monotonic_ns())))
                case Refused(reason=reason, detail=detail):
                    raise RuntimeError(f"the probe was refused: {reason}: {detail}")

    def _ping(self) -> None:
        with self._connect(1) as dealer:
            while not self._ends.wait(PING_MS / 1000):
                began_ns = time.monotonic_ns()
                self._greet(dealer, 1)
                self._looks.answered_ns.append(time.monotonic_ns() - began_ns)

    def _report(self) -> None:
        builder, chance, number = ReportBuilder(), random.Random(1), 0
        with self._connect(0) as dealer:
            while not self._ends.wait(REPORT_S * chance.uniform(0.5, 1.5)):
                number += 1
                interval = Interval(losses=Losses(steps_made=number, steps_buffered=0))
                report = builder.build(interval, time.monotonic_ns())
                self._made_ns[number] = report.host_ns
                dealer.send(encode(report))
                _answer_pings(dealer)

    def _look(self) -> None:
        seen = 0
        while not self._ends.wait(LOOK_S):
            found = _SEEN.search(read_body(f"{self._url}/metrics")[1])
            now_ns = time.monotonic_ns()
            number = 0 if found is None else int(found[1])
            self._looks.visible_ns.extend(now_ns - self._made_ns[one] for one in range(seen + 1, number + 1))
            seen = max(seen, number)

    def _scrape(self) -> None:
        while not self._ends.wait(SCRAPE_S):
            for path in ("/metrics", "/metrics/ranks"):
                began_s = time.monotonic()
                status, body = read_body(f"{self._url}{path}", gzip=True)
                if status == 200:
                    self._looks.scrapes.append(Scrape(path, time.monotonic() - began_s, len(body)))


def _answer_pings(dealer: "zmq.Socket[bytes]") -> None:
    while dealer.poll(0):
        message = decode(dealer.recv())
        if isinstance(message, ClockPing):
            dealer.send(encode(ClockPong(job_ns=message.job_ns, host_ns=time.monotonic_ns())))


def _boot(rank: int) -> str:
    return f"probe-{rank:03}"


def read_body(url: str, *, gzip: bool = False) -> tuple[int, bytes]:
    """The status and body of a page."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"} if gzip else {})
    try:
        with urllib.request.urlopen(request, timeout=HTTP_S_MAX) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
