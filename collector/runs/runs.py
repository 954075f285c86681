"""Find the run that a message is about. Several may have one name: the latest, and former ones that are over. Pure.

A message of a known rank process goes to its run, also when a later run of that name has begun: the sidecar's report of
how a rank ended, orphaned reports. Only the Hello of an unknown process may begin a run (`continues_run`).

Of each name at most FORMER_RUNS_MAX former runs stay in memory, and all runs together keep to `runs_max` and
`ranks_max`: former runs are dropped for that, those with the oldest change first. The owner drops them at each tick
(`find_excess_runs`).
"""

from collections.abc import Iterator
from typing import Final

from rankscope.collector.config import CollectorConfig, find_store
from rankscope.collector.run_ids import choose_run_id, make_run_id
from rankscope.collector.runs.events import PeerEvent, RankJoined
from rankscope.collector.runs.run import RunState
from rankscope.collector.store_address import ServerAddress
from rankscope.measure.messages import Hello
from rankscope.measure.units import ns_to_s, s_to_ns

FORMER_RUNS_MAX: Final = 3
"""Former runs of one name in memory, enough to compare a run with those before it: a run that is restarted every 10 s
must not crowd out others in lists and metrics. The store keeps the history of all."""

ENDED_ON_PURPOSE: Final = frozenset({"finished", "stopped", "interrupted"})
"""A run all of whose ranks ended so is complete, or its user stopped it: the next start is no restart of it."""


class Runs:
    """Every run, by name and id. Iterates in the order of their names, those of one name oldest first."""

    def __init__(self, config: CollectorConfig) -> None:
        self._config = config
        store = find_store(config)
        self._collector = store.collector if isinstance(store, ServerAddress) else ""
        self._by_name: dict[str, list[RunState]] = {}

    def __iter__(self) -> Iterator[RunState]:
        for name in sorted(self._by_name):
            yield from tuple(self._by_name[name])

    def find(self, name: str, event: PeerEvent) -> RunState | None:
        """Return the run that an event of this name is about; None when there is none, or a Hello begins a new one. An
        event of a process that no run knows goes to the latest run, which ignores it: it is of an older attempt.
        """
        runs = self._by_name.get(name)
        if runs is None:
            return None
        if not isinstance(event, RankJoined):
            return runs[0] if len(runs) == 1 else _find_by_boot_id(runs, event.boot_id) or runs[-1]
        hello = event.hello
        known = _find_by_boot_id(runs, hello.identity.boot_id)
        if known is not None:
            return known
        if hello.left_behind:
            return _find_run_of_orphan(runs, hello)
        within_ns = s_to_ns(self._config.restart_within_s)
        return runs[-1] if continues_run(hello, runs[-1], event.now_collector_ns, within_ns) else None

    def get(self, asked: str) -> RunState | None:
        """Return the run with this id, or the latest one of this name; None when there is none."""
        known = {run.run: run for run in self}
        run_id = choose_run_id(asked, known)
        return None if run_id is None else known[run_id]

    @property
    def names(self) -> frozenset[str]:
        """The names of all runs."""
        return frozenset(self._by_name)

    @property
    def by_name(self) -> list[tuple[RunState, ...]]:
        """The runs of each name, the latest last."""
        return [tuple(runs) for runs in self._by_name.values()]

    @property
    def over_ids(self) -> frozenset[str]:
        """The ids of runs that are over and the latest of their name."""
        return frozenset(runs[-1].run for runs in self._by_name.values() if runs[-1].is_over)

    def begin(self, name: str, wall_s: float) -> RunState:
        """Begin a run; other runs of this name become former ones."""
        runs = self._by_name.get(name)
        run_id = make_run_id(name, wall_s, latest_id=runs[-1].run if runs else None, collector=self._collector)
        run = RunState(run_id, self._config)
        self.put(run)
        return run

    def put(self, run: RunState) -> None:
        """Add a run. Of its name the one that began last is the latest."""
        runs = self._by_name.setdefault(run.name, [])
        runs.append(run)
        runs.sort(key=lambda one: one.run)
        for former in runs[:-1]:
            former.is_superseded = True

    def remove(self, run: RunState) -> None:
        """Remove a run."""
        runs = self._by_name[run.name]
        runs.remove(run)
        if not runs:
            del self._by_name[run.name]

    def find_excess_runs(self) -> list[RunState]:
        """Return the former runs that exceed the limits, of each name the oldest ones."""
        surplus = [run for runs in self._by_name.values() for run in runs[: -1 - FORMER_RUNS_MAX]]
        former = [run for runs in self._by_name.values() for run in runs[-1 - FORMER_RUNS_MAX : -1]]
        former.sort(key=lambda run: run.last_change_collector_ns, reverse=True)
        runs = sum(map(len, self._by_name.values())) - len(surplus)
        ranks = sum(run.world_size for run in self) - sum(run.world_size for run in surplus)
        while former and (runs > self._config.runs_max or ranks > self._config.ranks_max):
            dropped = former.pop()
            surplus.append(dropped)
            runs, ranks = runs - 1, ranks - dropped.world_size
        return surplus


def continues_run(hello: Hello, run: RunState, now_collector_ns: int, within_ns: int) -> bool:
    """Return whether an unknown process belongs to this run, or begins another run of the same name.

    It belongs to this run while any rank reports, or where a process has only restarted its agent. After a run that
    ended on purpose it begins another one. Otherwise it is the next attempt where the launcher counts a restart, or
    where the last message of this run is at most `within_ns` old.
    """
    attempt = run.attempt
    if attempt is None or any(rank.is_live and not rank.is_awaited for rank in attempt.ranks.values()):
        return True
    identity, present = hello.identity, attempt.ranks.get(hello.identity.rank)
    if present is not None and present.is_continued_by(identity):
        return True
    if run.is_over and all(rank.ended in ENDED_ON_PURPOSE for rank in attempt.ranks.values()):
        return False
    if identity.restart_count > attempt.restart_count:
        return True
    return now_collector_ns - run.last_message_collector_ns <= within_ns


def _find_by_boot_id(runs: list[RunState], boot_id: str) -> RunState | None:
    return next((run for run in reversed(runs) if boot_id in run.processes), None)


def _find_run_of_orphan(runs: list[RunState], hello: Hello) -> RunState:
    """Return the run of an ended process that was unknown: the latest one, unless the process began before the run
    before that one had last reported.
    """
    began_wall_s = ns_to_s(hello.wall_ns)
    for former, run in zip(reversed(runs[:-1]), reversed(runs[1:]), strict=True):
        if former.last_report_wall_s is None or began_wall_s > former.last_report_wall_s:
            return run
    return runs[0]
