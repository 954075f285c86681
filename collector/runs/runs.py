"""The runs a collector knows. Several may have one name: the latest, and former ones that are over. Pure.

A name alone does not tell which run a message is about. So a message of a life that is known goes to the run that knows
it, also when a later run of that name has begun: the sidecar's word on how a rank ended, reports that were left on a
disk. Only the Hello of a life that nobody knows may begin a run (`RunState.accepts_hello`).

Of each name at most FORMER_RUNS_MAX former runs stay in memory, and all runs together keep to `runs_max` and
`ranks_max`: former runs give way to that, the one that was heard of first before the others. Whoever owns this lets go
of them at each tick (`find_excess_runs`).
"""

from collections.abc import Iterator
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.run_ids import make_run_id
from rankscope.collector.runs.events import PeerEvent, RankJoined
from rankscope.collector.runs.run import RunState
from rankscope.measure.messages import Hello
from rankscope.measure.units import ns_to_s

FORMER_RUNS_MAX: Final = 3
"""Enough to compare a run with those before it. A job that is started anew every 10 s must not fill every list; the
store keeps the history of them all."""


class Runs:
    """Every run, by name and id. Iterating gives them in the order of their names, those of one name oldest first."""

    def __init__(self, config: CollectorConfig) -> None:
        self._config = config
        self._by_name: dict[str, list[RunState]] = {}

    def __iter__(self) -> Iterator[RunState]:
        for name in sorted(self._by_name):
            yield from tuple(self._by_name[name])

    def find(self, name: str, event: PeerEvent) -> RunState | None:
        """Return the run that an event of this name is about; None when there is none, or a Hello begins a new one.
        What a life says that no run knows is for the latest run to pass over: the life is of an attempt long ago.
        """
        jobs = self._by_name.get(name)
        if jobs is None:
            return None
        if not isinstance(event, RankJoined):
            return jobs[0] if len(jobs) == 1 else _find_knowing(jobs, event.boot_id) or jobs[-1]
        hello = event.hello
        knowing = _find_knowing(jobs, hello.identity.boot_id)
        if knowing is not None:
            return knowing
        if hello.left_behind:
            return _find_run_of_left_life(jobs, hello)
        return jobs[-1] if jobs[-1].accepts_hello(hello, event.now_collector_ns) else None

    @property
    def names(self) -> frozenset[str]:
        """The names of all runs."""
        return frozenset(self._by_name)

    @property
    def over_ids(self) -> frozenset[str]:
        """The ids of those runs that are over and the latest of their name."""
        return frozenset(jobs[-1].run for jobs in self._by_name.values() if jobs[-1].is_over)

    def begin(self, name: str, wall_s: float) -> RunState:
        """Begin a run; the runs of this name that there are become former ones."""
        jobs = self._by_name.get(name)
        run_id = make_run_id(name, wall_s, latest_id=jobs[-1].run if jobs else None)
        job = RunState(run_id, self._config)
        self.put(job)
        return job

    def put(self, job: RunState) -> None:
        """Add a run. Of its name the one that began last is the latest."""
        jobs = self._by_name.setdefault(job.name, [])
        jobs.append(job)
        jobs.sort(key=lambda one: one.run)
        for former in jobs[:-1]:
            former.is_superseded = True

    def remove(self, job: RunState) -> None:
        """Let go of a run."""
        jobs = self._by_name[job.name]
        jobs.remove(job)
        if not jobs:
            del self._by_name[job.name]

    def find_excess_runs(self) -> list[RunState]:
        """Return the former runs that have to give way to the limits, of each name the oldest ones."""
        surplus = [job for jobs in self._by_name.values() for job in jobs[: -1 - FORMER_RUNS_MAX]]
        former = [job for jobs in self._by_name.values() for job in jobs[-1 - FORMER_RUNS_MAX : -1]]
        former.sort(key=lambda job: job.last_change_collector_ns, reverse=True)
        runs = sum(map(len, self._by_name.values())) - len(surplus)
        ranks = sum(job.world_size for job in self) - sum(job.world_size for job in surplus)
        while former and (runs > self._config.runs_max or ranks > self._config.ranks_max):
            given_up = former.pop()
            surplus.append(given_up)
            runs, ranks = runs - 1, ranks - given_up.world_size
        return surplus


def _find_knowing(jobs: list[RunState], boot_id: str) -> RunState | None:
    return next((job for job in reversed(jobs) if job.knows(boot_id)), None)


def _find_run_of_left_life(jobs: list[RunState], hello: Hello) -> RunState:
    """Return the run of a life that has ended and that nobody knew: the latest one, unless the life began before the
    run before that one had reported for the last time.
    """
    began_wall_s = ns_to_s(hello.wall_ns)
    for former, job in zip(reversed(jobs[:-1]), reversed(jobs[1:]), strict=True):
        if former.last_report_wall_s is None or began_wall_s > former.last_report_wall_s:
            return job
    return jobs[0]
