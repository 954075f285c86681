"""Simulated ranks of one run, for tests of its state. Nothing here is random or timed."""

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.events import GoodbyeAdmitted, RankJoined, ReportAdmitted, RunEffect
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Report
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.records import (
    CollectiveRecord,
    GroupInfo,
    StepRecord,
    Totals,
    WindowBreakdown,
    collectives_to_table,
    steps_to_table,
)
from tests.run_ticks import tick_run
from tests.validated_run import ValidatedRun

MS = 1_000_000
S = 1_000 * MS
TRANSFER_NS = 5 * MS
OUTSIDE_NS = 8 * MS
GROUP = "default_pg"


def boot_of(rank: int, life: int = 0) -> str:
    return f"boot-{life}-{rank:04d}"


class Story:
    """One synchronous data-parallel run. Every step ends when the slowest rank has entered its all-reduce."""

    def __init__(self, ranks: int, config: CollectorConfig | None = None) -> None:
        self.run: RunState = ValidatedRun("story", config or CollectorConfig())
        self.ranks = ranks
        self.restart_count = 0
        self.life = 0
        self.step = 0
        self.now_ns = 1_000 * S
        self.sequence = dict.fromkeys(range(ranks), 0)
        self.totals = dict.fromkeys(range(ranks), Totals())
        self.effects: list[RunEffect] = []
        self.nodes: dict[int, str] = {}
        """By rank; of others it is node-a."""
        self.faults: dict[int, str] = {}
        """What ranks do to themselves on purpose, by rank."""
        self.slurm_job_id = ""
        self.wants_summaries = False
        """Whether rank 0 asks for summaries of the run."""
        self.begun_wall_ns = 0
        """When rank processes begin, by the clocks of their nodes."""

    def join(self, *ranks: int) -> "Story":
        for rank in ranks or range(self.ranks):
            self.sequence[rank] = 0
            self.totals[rank] = Totals()
        return self.come_back(*ranks)

    def come_back(self, *ranks: int) -> "Story":
        """Say Hello as the life that it is, with what it has not sent yet."""
        for rank in ranks or range(self.ranks):
            hello = Hello(
                identity=RankIdentity(
                    run="story",
                    rank=rank,
                    local_rank=rank,
                    world_size=self.ranks,
                    node=self.nodes.get(rank, "node-a"),
                    restart_count=self.restart_count,
                    boot_id=boot_of(rank, self.life),
                    pid=1_000 + rank,
                    slurm_job_id=self.slurm_job_id,
                ),
                first_sequence=self.sequence[rank] + 1,
                host_ns=0,
                wall_ns=self.begun_wall_ns,
                report_interval_ns=S,
                fault=self.faults.get(rank, ""),
                wants_summary=self.wants_summaries and rank == 0,
            )
            self.effects += self.run.apply(RankJoined(hello, self.now_ns))
        return self

    def restart(self, *, counted: bool = True) -> "Story":
        """Every rank begins a new life; torchrun counts it only where a rank has failed."""
        self.restart_count += counted
        self.life += 1
        self.step = 0
        return self.join()

    def train(self, steps: int, **work_ms: dict[int, float]) -> "Story":
        """So many steps, reported at once. `forward`, `data`, `backward`: by rank, in ms; 10 ms of each otherwise. Of
        `data` 8 ms are outside of the loader.
        """
        records: dict[int, list[StepRecord]] = {rank: [] for rank in range(self.ranks)}
        collectives: dict[int, list[CollectiveRecord]] = {rank: [] for rank in range(self.ranks)}
        for _ in range(steps):
            self._one_step(work_ms, records, collectives)
        for rank in range(self.ranks):
            self.report(rank, records[rank], collectives[rank])
        return self.tick()

    def report(
        self,
        rank: int,
        records: list[StepRecord],
        collectives: list[CollectiveRecord],
        breakdowns: tuple[WindowBreakdown, ...] = (),
        out_of_memory: tuple[OutOfMemory, ...] = (),
    ) -> None:
        self.sequence[rank] += 1
        self.totals[rank] = Totals(
            steps=self.totals[rank].steps + len(records),
            step_ns=self.totals[rank].step_ns + sum(record.duration_ns for record in records),
        )
        report = Report(
            sequence=self.sequence[rank],
            host_ns=self.now_ns,
            steps=steps_to_table(records),
            collectives=collectives_to_table(collectives),
            covered_steps=((records[0].step, records[-1].step),) if records and collectives else (),
            breakdowns=breakdowns,
            totals=self.totals[rank],
            groups=(GroupInfo(label=GROUP, description=GROUP, ranks=tuple(range(self.ranks)), backend="gloo"),),
            out_of_memory=out_of_memory,
        )
        self.effects += self.run.apply(
            ReportAdmitted(boot_of(rank, self.life), ReportFields.of(report), self.now_ns, 0.0)
        )

    def say_goodbye(self, rank: int, reason: str = "finished") -> "Story":
        self.sequence[rank] += 1
        goodbye = Goodbye(sequence=self.sequence[rank], reason=reason, exit_code=0)
        self.run.apply(GoodbyeAdmitted(boot_of(rank, self.life), goodbye, self.now_ns))
        return self

    def tick(self, seconds: float = 1.0) -> "Story":
        self.now_ns += round(seconds * S)
        self.effects += tick_run(self.run, self.now_ns, 0.0)
        return self

    def snapshot(self) -> RunSnapshot:
        return self.run.snapshot(self.now_ns)

    def _one_step(
        self,
        work_ms: dict[str, dict[int, float]],
        records: dict[int, list[StepRecord]],
        collectives: dict[int, list[CollectiveRecord]],
    ) -> None:
        def length_ns(rank: int, phase: str) -> int:
            return round(work_ms.get(phase, {}).get(rank, 10.0) * MS)

        phases = ("data", "forward", "backward")
        arrival_ns = {rank: sum(length_ns(rank, phase) for phase in phases) for rank in range(self.ranks)}
        end_ns = max(arrival_ns.values()) + TRANSFER_NS
        for rank in range(self.ranks):
            wait_ns = end_ns - arrival_ns[rank]
            phases_ns = {phase: length_ns(rank, phase) for phase in phases}
            phases_ns["backward"] += wait_ns
            outside_ns = min(OUTSIDE_NS, phases_ns["data"])  # else the run as a whole would wait for its loaders
            phases_ns["data"] -= outside_ns
            record = StepRecord(
                step=self.step,
                start_host_ns=self.now_ns,
                duration_ns=end_ns,
                phases_ns={**phases_ns, "optimizer": 0, "other": outside_ns},
                cpu_ns=arrival_ns[rank],
                batches=1,
                backwards=1,
            )
            records[rank].append(record)
            call = CollectiveRecord(
                step=self.step,
                group=GROUP,
                op="all_reduce",
                start_host_ns=self.now_ns + arrival_ns[rank],
                duration_ns=wait_ns,
                sequence=self.step + 1,
                bytes=4_000,
            )
            collectives[rank].append(call)
        self.now_ns += end_ns
        self.step += 1
