"""Looks at a collector under load from outside: how soon a report is seen, how soon a peer is answered, how long a
scrape takes. Each look has a connection and a thread of its own in the process of the test.
"""

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from gzip import decompress as gunzip
from typing import Final, NamedTuple

import zmq

from bench.load_reports import build_hello
from rankscope.measure.codec import decode, encode
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import ClockPing, ClockPong, Refused, Welcome
from rankscope.uplink.curve_client import set_keys

RUN: Final = "probe"
PING_MS: Final = 25
SCRAPE_S: Final = 15.0
ANSWER_S_MAX: Final = 60.0
HTTP_S_MAX: Final = 120.0
GZIP_MAGIC: Final = b"\x1f\x8b"
_READ_PAUSE: Final = re.compile(rb"^rankscope_ingest_stall_max_seconds (\S+)$", re.MULTILINE)
_LAST_REPORTS: Final = b"rankscope_rank_last_report_timestamp_seconds"
_LAST_REPORT: Final = re.compile(rb'^\w+\{(?=[^}]*run="load")[^}]*\} (\S+)', re.MULTILINE)


class Scrape(NamedTuple):
    """One answer of the collector over HTTP."""

    path: str
    began_s: float
    seconds: float
    size_bytes: int


class Looks(NamedTuple):
    """What was seen. `ages`: when a scrape began, and how old then the newest report of a rank was that its page shows;
    of each rank and scrape one. `answered`: when a Hello was said, and after how long it was answered. `read_pauses`:
    when a scrape began, and how long the collector had read nothing at most in the last 30 to 60 s. In s.
    """

    ages: list[tuple[float, float]]
    answered: list[tuple[float, float]]
    scrapes: list[Scrape]
    read_pauses: list[tuple[float, float]]

    def since(self, begin_s: float) -> "Looks":
        """Those that began at that moment of the monotonic clock, or later."""
        return Looks(
            [age for age in self.ages if age[0] >= begin_s],
            [answer for answer in self.answered if answer[0] >= begin_s],
            [scrape for scrape in self.scrapes if scrape.began_s >= begin_s],
            [pause for pause in self.read_pauses if pause[0] >= begin_s],
        )


class Probe:
    """One more rank, of a run of its own, that says Hello again and again; and a scraper of the pages at `paths`."""

    def __init__(self, endpoint: str, url: str, keys: ClientKeys, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._endpoint, self._url, self._keys = endpoint, url, keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._ends = threading.Event()
        self._looks = Looks([], [], [], [])
        self._failures: list[BaseException] = []
        works = (self._ping, *((self._scrape,) if paths else ()))
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
        dealer.send(encode(build_hello(RUN, rank, 1, _boot(rank))))
        while True:
            if not dealer.poll(round(ANSWER_S_MAX * 1000)):
                raise TimeoutError(f"no Welcome within {ANSWER_S_MAX} s")
            match decode(dealer.recv()):
                case Welcome():
                    return
                case ClockPing(collector_ns=collector_ns):
                    dealer.send(encode(ClockPong(collector_ns=collector_ns, host_ns=time.monotonic_ns())))
                case Refused(reason=reason, detail=detail):
                    raise RuntimeError(f"the probe was refused: {reason}: {detail}")

    def _ping(self) -> None:
        with self._connect(0) as dealer:
            while not self._ends.wait(PING_MS / 1000):
                began_s = time.monotonic()
                self._greet(dealer, 0)
                self._looks.answered.append((began_s, time.monotonic() - began_s))

    def _scrape(self) -> None:
        """Each page every SCRAPE_S, on the beat however long the answers take, and one after the other: as Prometheus
        does.
        """
        due_s = time.monotonic()
        while True:
            for path in self._paths:
                if self._ends.wait(max(0.0, due_s - time.monotonic())):
                    return
                due_s += SCRAPE_S / len(self._paths)
                began_s = time.monotonic()
                _, body = read_body(f"{self._url}{path}", gzip=True)
                self._looks.scrapes.append(Scrape(path, began_s, time.monotonic() - began_s, len(body)))
                now_wall_s = time.time()
                page = gunzip(body) if body.startswith(GZIP_MAGIC) else body
                self._looks.read_pauses.extend((began_s, float(told_s)) for told_s in _READ_PAUSE.findall(page))
                self._looks.ages.extend((began_s, now_wall_s - told_s) for told_s in find_last_reports(page))


def find_last_reports(page: bytes) -> list[float]:
    """When each rank of the load reported last, by a page; in s since 1970. Of 20 MB only that family is looked at:
    whatever else this process does, such as to wait for a Welcome, stands still meanwhile.
    """
    head = page.find(b"# TYPE " + _LAST_REPORTS)
    if head < 0:
        return []
    begin = page.find(b"\n", head) + 1
    end = page.find(b"\n#", begin)
    return [float(told) for told in _LAST_REPORT.findall(page[begin : end if end >= 0 else None])]


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
