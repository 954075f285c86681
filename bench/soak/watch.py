"""What is looked at all along: the pages of metrics, /readyz, and the memory of every process."""

import contextlib
import re
import statistics
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from tests.integration.fault_figures import read_cpu_s, read_resident_bytes
from tests.integration.faults import LABEL

SAMPLE_S: Final = 5.0
"""Between two looks at the memory."""

NS_PER_S: Final = 1_000_000_000
S_PER_MIN: Final = 60.0
ANSWER_S_MAX: Final = 60.0
"""How long a page is waited for: longer than any Prometheus would, to see how long it takes on a busy machine."""

POINTS_MIN: Final = 3
"""Two points always lie on a line."""

PAGE_AGE_S_MAX: Final = 15.0
"""A page is rendered from each snapshot, and a snapshot waits for the store, which may be slow."""

ERRORS: Final = "rankscope_collector_errors_total"
COUNTED_BY_REASON: Final = frozenset({
    "rankscope_frames_refused_total", "rankscope_peers_refused_total", "rankscope_replies_failed_total",
    "rankscope_http_refused_total", ERRORS,
})  # fmt: skip

_SAMPLE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")

Key = tuple[str, str]
"""Name and labels of a sample, as they stand on the page."""


def read_url(url: str) -> bytes:
    """The body of a page. Raises OSError."""
    with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
        body: bytes = answer.read()
    return body


class Page(NamedTuple):
    """A page of metrics: its counters, and of each run the restart that it is in."""

    counters: Mapping[Key, float]
    samples: Mapping[Key, float]
    restarts: Mapping[str, str]


def parse_page(text: str) -> Page:
    """Read a page in the text format. Time stamps and exemplars, which the collector never writes, are not read."""
    counted: set[str] = set()
    samples: dict[Key, float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE ") and line.endswith(" counter"):
            counted.add(line.split()[2])
        elif not line.startswith("#") and (found := _SAMPLE.match(line)):
            samples[found[1], found[2] or ""] = float(found[3])
    infos = [parse_labels(labels) for name, labels in samples if name == "rankscope_run_info"]
    return Page(
        counters={key: value for key, value in samples.items() if key[0] in counted},
        samples=samples,
        restarts={info["run"]: info["restart_count"] for info in infos},
    )


def parse_labels(text: str) -> dict[str, str]:
    """The labels of a sample, still escaped."""
    return dict(LABEL.findall(text))


def find_comparable(before: Page, after: Page, settled: Collection[str], *, same_collector: bool) -> list[Key]:
    """Counters that may only grow from one page to the other: those of a run while it is `settled`, those of the
    collector itself while it is the same process.
    """

    def counts_on(labels: str) -> bool:
        run = parse_labels(labels).get("run")
        return same_collector if run is None else run in settled

    return [key for key in before.counters if key in after.counters and counts_on(key[1])]


def find_backward(before: Page, after: Page, keys: Sequence[Key]) -> list[str]:
    """Which of these counters are smaller on the later page."""
    return [
        f"{name}{{{labels}}} went from {before.counters[name, labels]:g} to {after.counters[name, labels]:g}"
        for name, labels in keys
        if after.counters[name, labels] < before.counters[name, labels]
    ]


@dataclass
class Settling:
    """Which runs are in the same restart on all pages. The page of the run and that of its ranks are not of one moment:
    each may be `page_age_s_max` old, so that one shows a restart which the other does not know yet.
    """

    page_age_s_max: float
    _since_s: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By run the restart that pages show of it, and when the first scrape began that did."""

    def take(self, page: Page, began_s: float, restarts: Mapping[str, int]) -> set[str]:
        """Runs that nobody has restarted since their pages were all of the same restart. `restarts`: how many times
        each run has been restarted by now, shown or not.
        """
        settled = set()
        for run, shown in page.restarts.items():
            if self._since_s.get(run, ("", 0.0))[0] != shown:
                self._since_s[run] = shown, began_s
            is_old = began_s - self._since_s[run][1] > self.page_age_s_max
            if is_old and shown == str(restarts.get(run)):
                settled.add(run)
        return settled


def find_reasons(page: Page) -> dict[Key, int]:
    """What a collector has refused, by family and reason, and its contained errors, by part; those there are."""
    found = {}
    for (name, text), value in page.samples.items():
        if name in COUNTED_BY_REASON and value:
            (reason,) = parse_labels(text).values()
            found[name, reason] = int(value)
    return found


class Trend(NamedTuple):
    """How a memory grows over time: MiB a minute, over so many minutes of so many processes."""

    mib_per_min: float
    minutes: float
    processes: int


class MemorySample(NamedTuple):
    """Resident bytes of a process at a moment of the soak."""

    at_s: float
    pid: int
    resident_bytes: int


def find_trend(samples: Sequence[MemorySample], warm_up_s: float) -> Trend | None:
    """The slope that fits all processes best, each with a level of its own (least squares), without the first
    `warm_up_s` of each. None where no process has three samples after that.
    """
    by_pid: dict[int, list[MemorySample]] = {}
    for sample in samples:
        by_pid.setdefault(sample.pid, []).append(sample)
    products = squares = minutes = 0.0
    processes = 0
    for series in by_pid.values():
        warm = [one for one in series if one.at_s >= series[0].at_s + warm_up_s]
        if len(warm) < POINTS_MIN:
            continue
        processes += 1
        minutes += (warm[-1].at_s - warm[0].at_s) / S_PER_MIN
        at_s = statistics.fmean(one.at_s for one in warm)
        level = statistics.fmean(one.resident_bytes for one in warm)
        products += sum((one.at_s - at_s) * (one.resident_bytes - level) for one in warm)
        squares += sum((one.at_s - at_s) ** 2 for one in warm)
    if not squares:
        return None
    return Trend(products / squares * S_PER_MIN / (1 << 20), minutes, processes)


@dataclass
class Watch:
    """Looks at a collector and its ranks, from threads of its own."""

    find_url: Callable[[], str]
    find_collector: Callable[[], int]
    find_nodes: Callable[[], Sequence[int]]
    find_restarts: Callable[[], Mapping[str, int]]
    scrape_s: float
    page_age_s_max: float = PAGE_AGE_S_MAX
    began_s: float = field(default_factory=monotonic)
    problems: list[str] = field(default_factory=list)
    scrapes: int = 0
    comparisons: int = 0
    """Counters that were compared with themselves on the page before."""
    scrapes_failed: int = 0
    longest_scrape_s: float = 0.0
    collector_memory: list[MemorySample] = field(default_factory=list)
    node_memory: list[MemorySample] = field(default_factory=list)
    cpu_s: dict[int, float] = field(default_factory=dict)
    """CPU time of each collector, as last seen."""
    waited_s: dict[int, float] = field(default_factory=dict)
    """How long the threads of each collector have waited for a core, as last seen."""
    reasons: dict[int, dict[Key, int]] = field(default_factory=dict)
    """What each collector had refused, and what had gone wrong inside it, by reason or part, as last seen."""
    weak: int = 0
    """Pages that came while nothing could be written to the store, and /readyz said so."""

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._differ_since_s: float | None = None
        self._settling = Settling(self.page_age_s_max)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._scrape, self._weigh)]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look from now on, until the end of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in self._threads:
                thread.join()

    @property
    def elapsed_s(self) -> float:
        """Since it began."""
        return monotonic() - self.began_s

    # -- pages --------------------------------------------------------------------------------------------------------

    def read_page(self) -> Page:
        """Both pages of metrics as one. Raises OSError while there is no collector, or it does not answer."""
        url = self.find_url()
        text = read_url(f"{url}/metrics").decode()
        try:
            text += read_url(f"{url}/metrics/ranks").decode()
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:  # a collector that has all on one page
                raise
        return parse_page(text)

    def _scrape(self) -> None:
        before: tuple[int, Page, set[str]] | None = None
        while not self._ending.wait(self.scrape_s):
            began_s = monotonic()
            try:
                pid = self.find_collector()
                said, page, said_again = self._read_readiness(), self.read_page(), self._read_readiness()
            except OSError:  # urllib's errors are such
                self.scrapes_failed += 1
                continue
            if pid != self.find_collector():
                continue  # nobody knows whose page it is
            self.reasons[pid] = find_reasons(page)
            if said == said_again:
                self._check_readiness(said, page)
            self.scrapes += 1
            self.longest_scrape_s = max(self.longest_scrape_s, monotonic() - began_s)
            settled = self._settling.take(page, began_s, self.find_restarts())
            if before is not None:
                # The earlier page is as old as the settling of then demands, the later one of the same restart still.
                keys = find_comparable(before[1], page, settled & before[2], same_collector=before[0] == pid)
                self.comparisons += len(keys)
                self.problems += [f"at {self.elapsed_s:.0f} s {said}" for said in find_backward(before[1], page, keys)]
            before = pid, page, settled

    def _read_readiness(self) -> str:
        return read_url(f"{self.find_url()}/readyz").decode()

    def _check_readiness(self, said: str, page: Page) -> None:
        """/readyz is of this moment, a page may be PAGE_AGE_S_MAX old: it counts where they differ for longer."""
        is_writable = page.samples["rankscope_store_writable", ""] == 1.0
        self.weak += not is_writable
        if (said == "ok\n") == is_writable:
            self._differ_since_s = None
        elif self._differ_since_s is None:
            self._differ_since_s = monotonic()
        elif monotonic() - self._differ_since_s > PAGE_AGE_S_MAX:
            self.problems.append(f"at {self.elapsed_s:.0f} s /readyz says {said!r} and the page {is_writable=}")

    # -- memory -------------------------------------------------------------------------------------------------------

    def _weigh(self) -> None:
        while not self._ending.wait(SAMPLE_S):
            at_s = self.elapsed_s
            pid = self.find_collector()
            self.collector_memory += _weigh(at_s, [pid])
            self.node_memory += _weigh(at_s, self.find_nodes())
            try:
                self.cpu_s[pid], self.waited_s[pid] = read_cpu_s(pid), read_waited_s(pid)
            except OSError:
                continue  # it is being killed


def _weigh(at_s: float, pids: Sequence[int]) -> list[MemorySample]:
    found = []
    for pid in pids:
        try:
            found.append(MemorySample(at_s, pid, read_resident_bytes(pid)))
        except (OSError, ValueError):
            continue  # it is being killed
    return found


def read_waited_s(pid: int) -> float:
    """How long the threads of a process were ready and had no core, from the scheduler."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[1]) for file in files) / NS_PER_S
