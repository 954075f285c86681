"""Collectors that know runs which nobody trains: what the API and the live page are held against.

Small runs are told by a real RunState (`run_stories.py`); a run of 16,384 ranks is made of columns, as its state makes
them, because to report for so many ranks would take longer than to look at them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from rankscope.collector.captures.capture import NO_CAPTURES, Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.statistics.excess import find_excess, slowdown_ratios
from rankscope.collector.incidents.incident import Incident, begin
from rankscope.collector.publish.api.step_breakdown import Shares
from rankscope.collector.publish.http_auth import OPEN, HttpAuth
from rankscope.collector.publish.http_connections import HttpLimits
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.publish.routes import NO_SETTINGS, PageSettings
from rankscope.collector.reports.run_report import report_as_json
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.runs.run_dump import RunDump, dump_run
from rankscope.collector.runs.snapshot import NOTHING_COUNTED, RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import StepSeries, medians_of_last
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.records import Totals, WindowBreakdown
from tests.unit.collector.runs.run_stories import MS, Story

RANKS_PER_NODE = 8
STEPS = 64
WORK_NS = 100.0 * MS
SLOWER = 2.0
NOISE = 0.01
SEED = 20_260_314
BEGIN_WALL_S = 1_773_500_000.0


class LiveWorld:
    """What a server is given, for the test to change. Every change is a new picture."""

    def __init__(self) -> None:
        self.counts = NOTHING_COUNTED
        self.snapshot = Snapshot(wall_s=BEGIN_WALL_S, version="0.1.0")
        self.read: Callable[[], Snapshot] = lambda: self.snapshot
        self.dumps: dict[str, RunDump] = {}
        self.time_slices = Shares()
        self.captures: tuple[Capture, ...] = ()
        self.incidents: tuple[Incident, ...] = ()
        self.orders: list[CaptureRequest] = []
        self.answer: Capture | CaptureRefusal = NO_CAPTURES

    def show(self, *runs: RunSnapshot, steps: dict[str, HeatMapSteps] | None = None) -> None:
        """These runs, a second later."""
        self.snapshot = Snapshot(
            wall_s=self.snapshot.wall_s + 1.0, version="0.1.0", runs=runs, steps={} if steps is None else steps,
            counts=self.counts,
        )  # fmt: skip
        self.time_slices.record(self.snapshot)

    def tell(self, story: Story, name: str = "story") -> None:
        """A story as it stands, under this name."""
        self.show(*[rename(story.snapshot(), name)], steps=pictures_of(story, name))
        self.dumps = {name: msgspec.structs.replace(dump_run(story.run, story.now_ns), run_id=name)}

    def read_snapshot(self) -> Snapshot:
        """What `read` gives at this moment."""
        return self.read()

    def read_dump(self, run: str) -> bytes | None:
        """Return the inside of a run that a story has told, as JSON."""
        found = self.dumps.get(run)
        return None if found is None else msgspec.json.encode(found)

    def order(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        """Note an order, and give the answer that the test has set; a capture is kept from then on."""
        self.orders.append(request)
        if isinstance(self.answer, Capture):
            self.captures = (self.answer, *self.captures)
        return self.answer

    @contextmanager
    def serve(
        self,
        access: HttpAuth = OPEN,
        *,
        store: Path | None = None,
        limits: HttpLimits | None = None,
        captures_folder: Path | None = None,
        settings: PageSettings = NO_SETTINGS,
    ) -> Iterator[HttpServer]:
        """A server of this world."""
        server = HttpServer(
            listen_http("127.0.0.1:0"), self.read_snapshot, lambda: self.incidents,
            is_healthy=lambda: None, is_ready=lambda: None, access=access, store=store,
            read_report=None if store is None else lambda run: report_as_json(store, run), limits=limits,
            read_dump=self.read_dump, read_time_slices=self.time_slices.of,
            order_capture=self.order, read_captures=lambda: self.captures, captures_folder=captures_folder,
            page_settings=settings,
        )  # fmt: skip
        try:
            yield server
        finally:
            server.close()


def slow_story(ranks: int = 4, slow_rank: int = 2) -> Story:
    """A job whose rank is slow for long enough to be found: 60 ms of own work a step against 30."""
    story = Story(ranks).join()
    for _ in range(8):
        story.train(8)
    for _ in range(6):
        story.train(8, data={slow_rank: 40.0})
    return story


def pictures_of(story: Story, name: str = "story") -> dict[str, HeatMapSteps]:
    """The last steps of a story."""
    picture = story.run.heat_map_steps
    return {} if picture is None else {name: picture}


def rename(run: RunSnapshot, name: str) -> RunSnapshot:
    """The same run under another name."""
    return msgspec.structs.replace(run, run=name, run_id=name)


def huge_run(name: str, ranks: int, slow_rank: int, *, first_step: int = 0) -> tuple[RunSnapshot, HeatMapSteps]:
    """A run of so many ranks one of which takes twice as long in every step, and its last 64 steps."""
    chance = np.random.default_rng(SEED)
    own_ns = WORK_NS * (1.0 + NOISE * chance.standard_normal((STEPS, ranks)))
    own_ns[:, slow_rank] *= SLOWER
    step_ns = np.broadcast_to(own_ns.max(axis=1, keepdims=True), own_ns.shape)
    numbers = tuple(range(ranks))
    phases = {"forward": own_ns * 0.4, "backward": own_ns * 0.6}
    series = StepSeries(
        np.arange(first_step, first_step + STEPS), numbers, step_ns, own_ns, own_ns, phases, own_is_measured=True
    )
    groups = find_peer_groups(numbers, {})
    excess = find_excess(series, groups)
    slowdowns = slowdown_ratios(excess, STEPS).tolist()
    medians = medians_of_last(own_ns, STEPS).tolist()
    lines = tuple(_rank_of(name, rank, ranks, slowdowns[rank], medians[rank]) for rank in numbers)
    run = RunSnapshot(run=name, world_size=ranks, restart_count=0, ranks=lines, run_slowdown_ratio=SLOWER)
    picture = HeatMapSteps(
        attempt=0, steps=series.steps, ranks=np.array(numbers), own_ns=own_ns.astype(np.float32),
        excess=excess.astype(np.float32), peer_groups=groups, latest_step=first_step + STEPS - 1,
        marked_steps=series.steps, marked_wall_s=np.linspace(BEGIN_WALL_S, BEGIN_WALL_S + 0.2 * (STEPS - 1), STEPS),
    )  # fmt: skip
    return run, picture


def incident_of(number: int, run: str, finding: Finding, opened_wall_s: float = BEGIN_WALL_S - 90.0) -> Incident:
    """An open incident of a run, opened a minute and a half before the first snapshot."""
    return begin(number, run, finding, opened_wall_s)


def finding_of(number: int, sentence: str, **known: object) -> Finding:
    """A finding that says this."""
    fields: dict[str, object] = {"kind": "straggler", "cause": "host_cpu", "ranks": (2,)} | known
    return Finding(number=number, sentence=sentence, **fields)  # type: ignore[arg-type]


def _rank_of(run: str, rank: int, ranks: int, slowdown: float, own_ns: float) -> RankSnapshot:
    identity = RankIdentity(
        run=RunId(run), rank=rank, local_rank=rank % RANKS_PER_NODE, world_size=ranks, restart_count=0,
        node=f"node-{rank // RANKS_PER_NODE}", boot_id=BootId(f"boot-{rank:08d}"), pid=1_000 + rank,
    )  # fmt: skip
    window_ns = STEPS * round(WORK_NS * SLOWER)
    return RankSnapshot(
        identity=identity,
        up=True,
        reports_admitted=STEPS,
        last_step=STEPS - 1,
        step_ns_median=WORK_NS * SLOWER,
        own_ns_median=own_ns,
        slowdown_ratio=slowdown,
        phases_ns_median={"forward": 0.4 * own_ns, "backward": 0.6 * own_ns},
        totals=totals_of(STEPS),
        breakdown=WindowBreakdown(
            first_step=0, step_count=STEPS, window_ns=window_ns, compute_ns=window_ns // 2,
            communication_ns=window_ns // 2, overlap_ns=window_ns // 4, exposed_communication_ns=window_ns // 4,
            copy_ns=0, idle_ns=window_ns // 4,
        ),
    )  # fmt: skip


def totals_of(steps: int) -> Totals:
    """What a rank has counted after so many steps of 200 ms: half of the time is data, a tenth the optimizer. Half of
    its windows is compute, of which half is overlapped, a quarter exposed communication, a quarter idle.
    """
    step_ns = steps * 200 * MS
    tenth = step_ns // 10
    return Totals(
        steps=steps, step_ns=step_ns,
        phases_ns={"data": 5 * tenth, "forward": tenth, "backward": 2 * tenth, "optimizer": tenth, "other": tenth},
        window_ns=step_ns, compute_ns=step_ns // 2, communication_ns=step_ns // 2, overlap_ns=step_ns // 4,
        exposed_communication_ns=step_ns // 4, copy_ns=0, idle_ns=step_ns // 4,
    )  # fmt: skip
