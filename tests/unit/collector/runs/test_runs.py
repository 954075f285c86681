"""Which starts of one name are one run, and which are runs of their own."""

from collections.abc import Sequence

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import EndSeen, GoodbyeAdmitted, PeerEvent, RankJoined, ReportAdmitted
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.runs import FORMER_RUNS_MAX, Runs
from rankscope.collector.runs.saved_runs import restore_run, save_run
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Report
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.units import NS_PER_S
from tests.run_ticks import tick_run

BEGIN_WALL_S = 1_795_602_605
"""2026-11-25 10:30:05 UTC."""
FIRST, SECOND = "bert@20261125T103005Z", "bert@20261125T103045Z"


class Launches:
    """Launches of a run, one after the other. The collector's clock begins at 1000 s; the wall clock passes with it."""

    def __init__(self, **settings: float) -> None:
        self.config = CollectorConfig(**settings)  # type: ignore[arg-type]
        self.runs = Runs(self.config)
        self.now_s = 0.0
        self.hellos: dict[str, Hello] = {}

    @property
    def now_ns(self) -> int:
        """The time of the collector."""
        return round((1_000 + self.now_s) * NS_PER_S)

    def wait(self, seconds: float) -> "Launches":
        """Let time pass, and tick."""
        self.now_s += seconds
        for former in self.runs.find_excess_runs():
            self.runs.remove(former)
        for run in self.runs:
            tick_run(run, self.now_ns, BEGIN_WALL_S + self.now_s)
        return self

    def send(self, event: PeerEvent, name: str = "bert") -> RunState | None:
        """Give an event to its run, as the collector does."""
        run = self.runs.find(name, event)
        if run is None and isinstance(event, RankJoined):
            run = self.runs.begin(name, BEGIN_WALL_S + self.now_s)
        if run is not None:
            run.apply(event)
        return run

    def launch(
        self, launch: str, ranks: Sequence[int] = (0, 1), name: str = "bert", world: int = 2, **more: int
    ) -> RunState | None:
        """Every rank says Hello and reports once; the run of the last one."""
        run = None
        for rank in ranks:
            run = self.send(self.say_hello(f"{launch}-boot-{rank}", rank, name, world, **more), name)
            self.report(f"{launch}-boot-{rank}", name)
        return run

    def say_hello(self, boot: str, rank: int, name: str = "bert", world: int = 2, **more: int) -> RankJoined:
        """The Hello of a life that begins now."""
        identity = RankIdentity(
            run=name, rank=rank, local_rank=rank, world_size=world, node=f"n{more.get('node', 0)}",
            machine_id="m/pid:[1]", boot_id=boot, restart_count=more.get("restart_count", 0), pid=more.get("pid", 1),
        )  # fmt: skip
        wall_ns = round((BEGIN_WALL_S + more.get("began_s", self.now_s)) * NS_PER_S)
        hello = Hello(
            identity=identity, first_sequence=1, host_ns=0, wall_ns=wall_ns, report_interval_ns=NS_PER_S,
            left_behind=bool(more.get("left_behind")),
        )  # fmt: skip
        self.hellos[boot] = hello
        return RankJoined(hello, self.now_ns)

    def report(self, boot: str, name: str = "bert") -> None:
        """A report of a life."""
        excerpt = ReportFields.of(Report(sequence=1, host_ns=0))
        self.send(ReportAdmitted(boot, excerpt, self.now_ns, BEGIN_WALL_S + self.now_s), name)

    def end(self, launch: str, *reasons: str, name: str = "bert") -> "Launches":
        """Each rank says how it ends, and nothing comes of it any more."""
        for rank, reason in enumerate(reasons):
            goodbye = Goodbye(sequence=2, reason=reason)
            self.send(GoodbyeAdmitted(f"{launch}-boot-{rank}", goodbye, self.now_ns), name)
        return self.wait(0)

    def end_seen(self, boot: str, reason: str) -> EndSeen:
        """The word of a sidecar."""
        seen = RankEnded(sequence=1, identity=self.hellos[boot].identity, host_ns=0, wall_ns=0, reason=reason)
        return EndSeen(boot, seen, self.now_ns)

    @property
    def ids(self) -> list[str]:
        """The runs there are."""
        return [run.run for run in self.runs]

    @property
    def attempts(self) -> list[int]:
        """Of each run how many restarts it has had."""
        return [run.attempts for run in self.runs]

    def goodput(self, run_id: str) -> GoodputSnapshot:
        """Where the time of a run went."""
        return next(run.snapshot(self.now_ns).goodput for run in self.runs if run.run == run_id)


def test_start_after_a_run_that_finished_is_a_new_run() -> None:
    launches = Launches()
    launches.launch("one")
    launches.wait(20).end("one", "finished", "finished").wait(20).launch("two")
    assert (launches.ids, launches.attempts) == ([FIRST, SECOND], [0, 0])


def test_each_run_of_a_name_has_its_own_time() -> None:
    """The first one lasted 20 s, the second one has for 7 s; nobody restarted in the 20 s between them."""
    launches = Launches()
    launches.launch("one")
    launches.wait(20).end("one", "finished", "finished").wait(20).launch("two")
    launches.wait(7)
    first, second = launches.goodput(FIRST), launches.goodput(SECOND)
    assert (first.wall_ns, first.restart_ns) == (20 * NS_PER_S, 0)
    assert (second.wall_ns, second.restart_ns) == (7 * NS_PER_S, 0)


def restart_collector(launches: Launches, away_s: float, *, keep_lives: bool = True) -> None:
    """The collector is gone with all but what it had saved, and the next one goes on with that."""
    clocks = Clocks(launches.now_ns, BEGIN_WALL_S + launches.now_s)
    launches.now_s += away_s
    later = Clocks(launches.now_ns, BEGIN_WALL_S + launches.now_s)
    restored = Runs(launches.config)
    for run in launches.runs:
        saved = save_run(run, clocks)
        assert saved is not None
        lives = [saved.save_rank(rank, clocks)() for rank in saved.ranks] if keep_lives else []
        restored.put(restore_run(launches.config, saved.run, saved.story, lives, later))
    launches.runs = restored


def test_superseded_lost_run_ends_at_its_last_message() -> None:
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    launches.wait(20).report("one-boot-0")
    launches.wait(100).launch("two")
    assert launches.wait(1).goodput(FIRST).wall_ns == 20 * NS_PER_S


def test_former_run_without_restored_ranks_is_over() -> None:
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    launches.wait(100).launch("two")
    restart_collector(launches, 5, keep_lives=False)
    assert [run.is_over for run in launches.wait(1).runs] == [True, False]


def test_collector_restarts_do_not_renew_a_lost_run() -> None:
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    for _ in range(3):
        launches.wait(20)
        restart_collector(launches, 20)
    launches.launch("two")
    assert launches.attempts == [0, 0]


@pytest.mark.parametrize("reasons", [("failed", "terminated"), ("finished", "killed"), ("terminated", "terminated")])
def test_start_soon_after_a_run_that_failed_is_its_restart(reasons: tuple[str, str]) -> None:
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    launches.end("one", *reasons).wait(60).launch("two")
    assert (launches.ids, launches.attempts) == ([FIRST], [1])


def test_start_long_after_a_run_that_failed_is_a_new_run() -> None:
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    launches.end("one", "failed", "terminated").wait(61).launch("two")
    assert (len(launches.ids), launches.attempts) == (2, [0, 0])


def test_new_launcher_counting_from_0_is_accepted() -> None:
    """torchrun had restarted its ranks three times and given up; the pod was started anew, and with it torchrun."""
    launches = Launches()
    launches.launch("one", restart_count=3)
    run = launches.end("one", "failed", "terminated").wait(10).launch("two", restart_count=0)
    assert boots_of(run, launches) == ["two-boot-0", "two-boot-1"]
    assert launches.attempts == [1]


def boots_of(run: RunState | None, launches: Launches) -> list[str]:
    """The lives of a run's present attempt, by rank."""
    assert run is not None
    return [rank.identity.boot_id for rank in run.snapshot(launches.now_ns).ranks]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_restart_counted_by_one_node_keeps_both_nodes(order: tuple[int, int]) -> None:
    """torchrun counts failures of its own node: rank 0 failed, and the node of rank 1 begins anew uncounted."""
    launches = Launches()
    for rank in (0, 1):
        launches.launch("one", ranks=[rank], node=rank)
    launches.end("one", "failed", "terminated").wait(10)
    run = None
    for rank in order:
        run = launches.launch("two", ranks=[rank], node=rank, restart_count=int(rank == 0))
    assert boots_of(run, launches) == ["two-boot-0", "two-boot-1"]
    assert (launches.ids, launches.attempts) == ([FIRST], [1])
    assert run is not None
    assert run.snapshot(launches.now_ns).restart_count == 1


def test_new_rank_with_a_restart_count_begins_an_attempt() -> None:
    """Rank 1 failed before its Hello, on a node of its own; the node of rank 0 counts nothing."""
    launches = Launches()
    launches.launch("one", ranks=[0], node=0)
    launches.wait(5).launch("two", ranks=[1], node=1, restart_count=1)
    run = launches.launch("two", ranks=[0], node=0)
    assert boots_of(run, launches) == ["two-boot-0", "two-boot-1"]


def test_rank_of_an_added_node_may_come_first() -> None:
    """Two ranks become three, and the Hello of the third one comes first."""
    launches = Launches()
    launches.launch("one", ranks=[0, 1])
    launches.wait(5).launch("two", ranks=[2], world=3, node=1)
    run = launches.launch("two", ranks=[0, 1], world=3)
    assert boots_of(run, launches) == ["two-boot-0", "two-boot-1", "two-boot-2"]
    assert launches.attempts == [1]


def test_counted_restart_may_come_late() -> None:
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    launches.end("one", "failed", "terminated").wait(3_000).launch("two", restart_count=1)
    assert (launches.ids, launches.attempts) == ([FIRST], [1])


def test_start_after_an_interrupted_run_is_a_new_run() -> None:
    launches = Launches()
    launches.launch("one")
    launches.end("one", "interrupted", "interrupted").wait(1).launch("two")
    assert launches.attempts == [0, 0]


def test_start_long_after_silence_is_a_new_run() -> None:
    """The node lost its power: nobody said how the ranks ended."""
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    launches.wait(16).wait(61).launch("two")
    former, latest = launches.runs
    assert (former.is_over, latest.is_over, launches.attempts) == (True, False, [0, 0])


def test_start_soon_after_all_ranks_fell_silent_is_a_restart() -> None:
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    launches.wait(16).wait(40).launch("two")
    assert (launches.ids, launches.attempts) == ([FIRST], [1])


def test_late_rank_joins_when_the_others_have_finished() -> None:
    launches = Launches()
    launches.launch("one", ranks=[0])
    launches.end("one", "finished").wait(1).launch("one", ranks=[1])
    assert launches.ids == [FIRST]


def test_restarted_agent_stays_in_its_run() -> None:
    launches = Launches()
    launches.launch("one", ranks=[0], world=1, pid=77)
    launches.end("one", "stopped").wait(5).launch("two", ranks=[0], world=1, pid=77)
    assert (launches.ids, launches.attempts) == ([FIRST], [1])


def test_container_with_the_same_process_numbers_is_a_new_run() -> None:
    launches = Launches()
    launches.launch("one", ranks=[0], world=1, pid=77)
    launches.end("one", "finished").wait(5).launch("two", ranks=[0], world=1, pid=77)
    assert len(launches.ids) == 2


def test_end_of_a_former_runs_rank_goes_to_that_run() -> None:
    launches = Launches()
    launches.launch("one")
    launches.end("one", "finished", "finished").wait(1).launch("two")
    run = launches.send(launches.end_seen("one-boot-1", "crashed"))
    assert run is not None
    assert (run.run, [rank.ended for rank in run.snapshot(launches.now_ns).ranks]) == (FIRST, ["finished", "crashed"])


@pytest.mark.parametrize(("began_s", "place"), [(5, 0), (25, 1)])
def test_orphaned_reports_go_to_the_run_of_their_process(began_s: int, place: int) -> None:
    """The first run reported for the last time at 20 s; the ended process was not known."""
    launches = Launches(restart_within_s=0)
    launches.launch("one", ranks=[0], world=3)
    launches.now_s = 20
    launches.report("one-boot-0")
    launches.end("one", "failed").wait(2).launch("two", ranks=[0], world=3)
    run = launches.send(launches.say_hello("boot-left", 2, world=3, left_behind=1, began_s=began_s))
    assert run is not None
    assert run.run == launches.ids[place]


def test_repeated_name_keeps_the_latest_runs() -> None:
    """All within a second: the ids differ nevertheless, and tell which was first."""
    launches = Launches()
    for number in range(10):
        launches.launch(f"run{number}")
        launches.end(f"run{number}", "finished", "finished")
    kept = [f"bert@20261125T1030{5 + number:02}Z" for number in range(10)][-1 - FORMER_RUNS_MAX :]
    assert launches.ids == kept


@pytest.mark.parametrize("limits", [{"runs_max": 3}, {"ranks_max": 6}])
def test_limits_drop_former_runs_only(limits: dict[str, float]) -> None:
    """Three runs of two ranks each may be known: the former run that was heard of first is let go of."""
    launches = Launches(**limits)
    for name in ("bert", "t5"):
        for number in range(2):
            launches.launch(f"{name}{number}", name=name)
            launches.end(f"{name}{number}", "finished", "finished", name=name)
            launches.wait(10)
    assert [run.name for run in launches.runs] == ["bert", "t5", "t5"]


def test_restored_run_rejects_a_start_long_after_it() -> None:
    """The collector was away for two hours. Whether the ranks that it knew live is not known: they do not report."""
    launches = Launches(restart_within_s=60)
    launches.launch("one")
    (run,) = launches.runs
    clocks = Clocks(launches.now_ns, BEGIN_WALL_S)
    saved = save_run(run, clocks)
    assert saved is not None
    lives = [saved.save_rank(rank, clocks)() for rank in saved.ranks]
    later = Launches(restart_within_s=60)
    later.now_s = 7_200
    later.runs.put(restore_run(later.config, saved.run, saved.story, lives, Clocks(later.now_ns, BEGIN_WALL_S + 7_200)))
    later.launch("two")
    assert (later.ids, later.attempts) == ([FIRST, "bert@20261125T123005Z"], [0, 0])
