"""Run the checks of a pre-flight on this rank, in step with all others.

join      every rank says where it is and on what; each learns the nodes
checks    one after the other, begun by all at the same time, while rank 0 says that there is time
judge     rank 0 reads the results of all, and names the checks in which something was slow
again     all ranks repeat those checks once, while there is time: what is slow both times is named
end       rank 0 writes, and gives all ranks their exit status
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankscope.agent.preflight.checks import CUDA, DISK, NODE_ALL_REDUCE, PAIRS, NodeCheck, list_checks
from rankscope.agent.preflight.ending import DeadlineWatch
from rankscope.agent.preflight.faults import Sensors, find_clock_notes
from rankscope.agent.preflight.judgement import Judgement, Past, confirm, describe_unconfirmed, judge
from rankscope.agent.preflight.local_checks import CheckedDevice, CpuShare, measure_disk
from rankscope.agent.preflight.meeting import Meeting
from rankscope.agent.preflight.network import Network, measure_clocks, pair_rounds
from rankscope.agent.preflight.results import Measured, PairRates, RankResults

CHECK_RATIO: Final = 0.06
"""Share of the budget that one check gets. Those between ranks have fixed amounts."""
FIRST_RATIO_MAX: Final = 0.7
"""Share of the budget after which no check is begun for the first time: the rest is for repeating."""
AGAIN_RATIO_MAX: Final = 0.9
ROUNDS_MAX: Final = 8
"""Rounds of exchanges between nodes: each node meets so many others."""
RUN: Final = "run"
CLOCKS: Final = "clocks"


class Member(msgspec.Struct, frozen=True):
    """What a rank says when it joins."""

    node: str
    local_rank: int
    kind: str
    device: str


class Results(msgspec.Struct, kw_only=True):
    """The results of all ranks, and what was concluded; only rank 0 has them."""

    ranks: list[RankResults]
    judgement: Judgement
    checks: tuple[NodeCheck, ...]
    left_out: tuple[str, ...]


class Runner:
    """The pre-flight of one rank, from when it has joined. `members` are all ranks in order."""

    def __init__(
        self,
        meeting: Meeting,
        watch: DeadlineWatch,
        device: CheckedDevice,
        *,
        rank: int,
        members: Sequence[Member],
        budget_s: float,
    ) -> None:
        own = members[rank]
        self._meeting = meeting
        self._watch = watch
        self._device = device
        self._rank = rank
        self._budget_s = budget_s
        self._begin_s = time.monotonic()
        self.nodes: dict[str, list[int]] = {}
        for number, member in enumerate(members):
            self.nodes.setdefault(member.node, []).append(number)
        is_cuda = all(member.kind == CUDA for member in members)
        self.checks = list_checks(CUDA if any(member.kind == CUDA for member in members) else own.kind)
        self._own_checks = {check.name for check in list_checks(own.kind)}
        self.results = RankResults(
            rank=rank, local_rank=self.nodes[own.node].index(rank), node=own.node, kind=own.kind, device=own.device
        )
        if own.kind != CUDA and any(member.kind == CUDA for member in members):
            self.results.faults.append("torch finds no GPU on this rank, and other ranks have one")
        self._is_cuda = is_cuda
        self._share = CpuShare(device.threads)
        self._sensors = Sensors(is_reader=self.results.local_rank == 0)

    @property
    def took_s(self) -> float:
        """Return for how long the pre-flight has been running, in s."""
        return time.monotonic() - self._begin_s

    def run(
        self, disk_folder: str, wait_s: float, find_past: Callable[[Sequence[RankResults]], Past]
    ) -> Results | None:
        """Measure, repeat what was slow, and return everything at rank 0, None elsewhere. Raise IncompleteError."""
        self._sensors.begin()
        network = Network(self._rank, list(self.nodes.values()), self._device if self._is_cuda else None, wait_s)
        left_out = [
            check.title
            for check in self.checks
            if not self._run(check, network, disk_folder, which="first", ratio_max=FIRST_RATIO_MAX)
        ]
        if self._may_begin(CLOCKS, FIRST_RATIO_MAX):
            firsts = {node: ranks[0] for node, ranks in self.nodes.items()}
            self.results.clocks = measure_clocks(self._rank, firsts)
        self._read_sensors()
        first = self._collect("results")
        found = None if first is None else judge(first, self.checks, find_past(first))
        suspected = [] if found is None else sorted({one.check for one in found.slow})
        again = self._meeting.exchange("suspected", "", lambda _: " ".join(suspected), planned_s=self._check_s).split()
        repeated = {
            check.name
            for check in self.checks
            if check.name in again and self._run(check, network, disk_folder, which="again", ratio_max=AGAIN_RATIO_MAX)
        }
        second = self._collect("results again") if again else first
        if second is None or found is None:
            return None
        if again:
            left_out += describe_unconfirmed(found.slow, self.checks, repeated)
            later = judge(second, self.checks, find_past(second))
            found = later._replace(slow=confirm(found.slow, later.slow, repeated))
        return Results(ranks=second, judgement=found, checks=self.checks, left_out=tuple(left_out))

    @property
    def _check_s(self) -> float:
        return self._budget_s * CHECK_RATIO

    def _may_begin(self, stage: str, ratio_max: float) -> bool:
        """Return rank 0's answer whether there is time for a stage, when all ranks are ready for it."""
        self._watch.stage = stage
        may = self._meeting.exchange(
            stage,
            "",
            lambda _: RUN if self.took_s < ratio_max * self._budget_s else "",
            planned_s=2 * self._check_s,
        )
        return may == RUN

    def _run(self, check: NodeCheck, network: Network, disk_folder: str, *, which: str, ratio_max: float) -> bool:
        """Run a check with all ranks; return False where there was no time for it. Replaces earlier values."""
        stage = f"{check.title} ({which})"
        if check.name == PAIRS:
            return self._run_pairs(stage, network, ratio_max)
        if not self._may_begin(stage, ratio_max):
            return False
        measured = self._measure(check, network, disk_folder)
        if measured is not None:
            self.results.checks[check.name] = measured
        return True

    def _measure(self, check: NodeCheck, network: Network, disk_folder: str) -> Measured | None:
        if check.name == NODE_ALL_REDUCE:
            return network.measure_node_all_reduce()
        if check.name == DISK:
            return measure_disk(disk_folder, self._check_s) if self.results.local_rank == 0 else None
        if check.name not in self._own_checks:
            return Measured(absent="torch finds no GPU on this rank")
        return self._share.measure(lambda: self._device.measure(check.name, self._check_s, self._sensors.note_load))

    def _run_pairs(self, stage: str, network: Network, ratio_max: float) -> bool:
        """Exchange with the other nodes in rounds, the ranks with one local rank with each other."""
        names = list(self.nodes)
        pairs: list[PairRates] = []
        rounds = pair_rounds(len(names), ROUNDS_MAX)
        for number, one_round in enumerate(rounds):
            if not self._may_begin(f"{stage}, round {number + 1}", ratio_max):
                break
            for pair in one_round:
                other = {names[pair[0]]: names[pair[1]], names[pair[1]]: names[pair[0]]}.get(self.results.node)
                if other is not None and self.results.local_rank < len(self.nodes[other]):
                    values = network.measure_exchange(self.nodes[other][self.results.local_rank])
                    pairs.append(PairRates(node=self.results.node, other=other, values=values))
        else:
            self.results.pairs = pairs
            return True
        if not self.results.pairs:
            self.results.pairs = pairs
        return False

    def _read_sensors(self) -> None:
        found, notes = self._sensors.end(len(self.nodes[self.results.node]))
        self.results.faults += found
        self.results.notes += [*notes, *find_clock_notes(self.results.clocks)]

    def _collect(self, stage: str) -> list[RankResults] | None:
        """Return the results of all ranks at rank 0, None elsewhere."""
        self._watch.stage = stage
        self.results.cpu_share = None if self.results.kind == CUDA else self._share.share
        found: list[RankResults] = []

        def keep(bodies: list[str]) -> str:
            found.extend(msgspec.json.decode(body, type=RankResults) for body in bodies)
            return ""

        body = msgspec.json.encode(self.results).decode()
        self._meeting.exchange(stage, body, keep, planned_s=2 * self._check_s)
        return found if self._rank == 0 else None
