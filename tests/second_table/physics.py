"""Run the events of training steps: what each rank does, when its collectives begin and end.

Each rank has a host and, with a GPU, a device that runs behind it. A step is a list of operations; every rank goes
through it by its own clock, and ranks meet in collectives only:

    host      data | forward: launches | backward: launches | optimizer | other: waits for the device (loss.item())
    device           kernels, which begin once launched and once the kernels before are over
    channel          collectives of a group, one after the other (gloo: two at a time), each once its last member has
                     come; they last for their transfer, which varies

Nothing is solved or subtracted: a step is played from its first event to its last. Without a disturbance and with the
same seed the same numbers are drawn, so a run without it is the same run in all else (the counterfactual).
Differences from `tests/simulation/engine.py`: hosts run ahead of devices, channels queue, transfers vary, a stall is
where it happened and its shadow falls into the next step of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from tests.second_table import disturbances as of
from tests.second_table.disturbances import Cost
from tests.second_table.layout import DP, EP, PP, TP, WORLD, Floats, Ints, Layout

MS: Final = 1e6
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(5)
PHASE_COUNT: Final = 5
LAUNCH_SHARE: Final = 0.4
"""Time that a host takes to launch kernels, over their own: it is ahead of its device."""
SHARES: Final = {FORWARD: 0.30, BACKWARD: 0.60, OPTIMIZER: 0.10}
"""Of the computing of a step; the loader and the host's small things come on top."""
HOST_SHARE: Final = 0.02
GLOO_THREADS: Final = 2
"""Threads of gloo's that run a group's collectives: a third one waits until the first has ended."""
BUCKETS: Final = 4
LAYERS: Final = 3
MICRO: Final = 8


@dataclass(frozen=True, kw_only=True)
class Model:
    """A training: `kind` is ddp, fsdp, tp, pp or ep. A step of one rank alone computes for `step_ms`; its loader takes
    `data_ms`, and all its transfers `transfer_share` of that time.
    """

    kind: str
    step_ms: float
    data_ms: float = 0.3
    transfer_share: float = 0.12
    on_gpu: bool = True
    jitter: float = 0.01
    """Of a rank's work from step to step (log-normal)."""
    spread: float = 0.004
    """Of ranks among each other, for good."""
    stall_chance: float = 0.002
    """Of a rank and step to be held up by its host: mostly short, seldom long (Pareto)."""
    stall_ms: float = 1.0
    stall_ms_max: float = 40.0
    transfer_jitter: float = 0.05
    token_jitter: float = 0.0
    """Of the tokens of a rank's batch, whose work goes with them (packing)."""
    gc_every: int = 0
    """A garbage collection of all ranks at the same step (training scripts with gc.disable)."""
    gc_ms: float = 0.0


class Call(NamedTuple):
    """A collective, or half of a transfer between two stages, of all ranks; times NaN where a rank has no part."""

    dimension: str
    op: str
    size: Floats
    start: Floats
    end: Floats
    enqueued: Floats


@dataclass
class Step:
    """A step as it went, times in ns of the true clock, shape (ranks,) each; phases (5, ranks)."""

    start: Floats
    end: Floats
    phases: Floats
    cpu: Floats
    backward_cpu: Floats
    backward_end: Floats
    """When the own work of the last backward has ended on the host."""
    gc: Floats
    gc_count: Floats
    core: Floats
    compiled: Floats
    retries: Floats
    tokens: Floats
    operators: Floats
    device_phases: Floats
    device_tail: Floats
    device_start: Floats
    own: Floats
    """The time that a rank itself needed, whatever waits it had: the sum of its parts."""
    computed: Floats
    calls: list[Call] = field(default_factory=list)
    kernels: list[tuple[Floats, Floats]] = field(default_factory=list)


class Machine:
    """Plays the steps of a model on a layout. `costs` are in it, from the first step on."""

    def __init__(self, layout: Layout, model: Model, costs: Sequence[Cost], seed: int) -> None:
        self.layout, self.model, self._costs, self._seed = layout, model, tuple(costs), seed
        ranks = layout.world
        once = np.random.default_rng((1, seed))
        self.skew = np.exp(model.spread * once.standard_normal(ranks))
        self.host = np.zeros(ranks) + once.random(ranks) * 2e6
        self.device = self.host.copy()
        self._channels = {
            one: [np.zeros(ranks) for _ in range(1 if model.on_gpu else GLOO_THREADS)] for one in layout.groups
        }
        self._number = 0
        self._work_ns = model.step_ms * MS
        self._keep = False
        self._one: Step | None = None

    def play(self, *, keeps_events: bool = True) -> Step:
        """Play the next step; with `keeps_events` it has its collectives and kernels."""
        ranks, model, number = self.layout.world, self.model, self._number
        random = np.random.default_rng((2, self._seed, number))
        self._jitter = self.skew * np.exp(model.jitter * random.standard_normal(ranks))
        tokens = np.exp(model.token_jitter * random.standard_normal(ranks)) if model.token_jitter else np.ones(ranks)
        stalls = random.random(ranks) < model.stall_chance
        pareto = np.minimum(model.stall_ms_max, model.stall_ms * (1.0 + random.pareto(1.3, ranks)))
        self._stall = np.where(stalls, pareto, 0.0) * MS
        self._transfer = np.random.default_rng((3, self._seed, number))
        self._keep, self._number = keeps_events, number + 1
        one = self._one = self._apply_costs(number, tokens)
        extra = self._extra
        self._mark = np.maximum(self.host, self.device)
        self._host(DATA, self._loader(random), busy=False)
        one.device_start = np.maximum(self.host, self.device)
        self._host(FORWARD, extra[of.ASLEEP], busy=False)
        self._host(FORWARD, extra[of.CORE], busy=False)
        self._host(FORWARD, extra[of.BUSY] + extra[of.COMPILE] + HOST_SHARE * self._work_ns + self._stall)
        self._host(FORWARD, extra[of.GC])
        getattr(self, f"_{model.kind}")()
        self._compute(OPTIMIZER, SHARES[OPTIMIZER] * self._work_ns * np.ones(ranks), scales=False)
        self._close(OPTIMIZER)
        self._host(OTHER, extra[of.SAVE], busy=False)
        if model.on_gpu:  # loss.item()
            waited = np.maximum(0.0, self.device - self.host)
            one.cpu += waited
            one.phases[OTHER] += waited
            self.host = self.host + waited
        self._close(OTHER)
        one.end = self.host.copy()
        return one

    def _apply_costs(self, number: int, tokens: Floats) -> Step:
        """Find what costs time in a step, and return the step before its first event."""
        ranks, model = self.layout.world, self.model
        extra = {part: np.zeros(ranks) for part in of.PARTS}
        self._links: list[tuple[str, Floats]] = []
        operators, gc_count, is_hot = np.ones(ranks), np.zeros(ranks), np.zeros(ranks)
        for cost in self._costs:
            who = np.array(cost.ranks)
            strength = np.zeros(ranks)
            strength[who] = cost.when.strength(number, len(who), cost.seed)
            if cost.part == of.LINK:
                self._links.append((cost.dimension, strength * cost.share))
                continue
            base = model.data_ms * MS if cost.part == of.LOADER else self._work_ns
            extra[cost.part] += strength * (cost.ms * MS + cost.share * base)
            if cost.part == of.WORK:
                tokens = tokens * (1 + strength * cost.share)
                operators = operators * (1 + strength * cost.share * cost.operators)
                is_hot = is_hot + strength * cost.share
            if cost.part == of.GC:
                gc_count += strength > 0
        if model.gc_every and number % model.gc_every == 0:
            extra[of.GC] = extra[of.GC] + model.gc_ms * MS
            gc_count = gc_count + 1
        self._hot, self._tokens = is_hot, tokens
        self._extra = extra
        return Step(
            start=self.host.copy(), end=self.host, phases=np.zeros((PHASE_COUNT, ranks)), cpu=np.zeros(ranks),
            backward_cpu=np.zeros(ranks), backward_end=np.zeros(ranks),
            gc=extra[of.GC], gc_count=gc_count, core=extra[of.CORE],
            compiled=extra[of.COMPILE], retries=np.zeros(ranks), tokens=tokens,
            operators=operators, device_phases=np.zeros((PHASE_COUNT, ranks)), device_tail=np.zeros(ranks),
            device_start=self.device, own=np.zeros(ranks), computed=np.zeros(ranks),
        )  # fmt: skip

    def _loader(self, random: np.random.Generator) -> Floats:
        own = self.model.data_ms * MS * np.exp(0.1 * random.standard_normal(self.layout.world))
        return np.asarray(own + self._extra[of.LOADER])

    def _host(self, phase: int, ns: Floats, *, busy: bool = True) -> None:
        """The training thread does something by itself."""
        one = self._now
        self.host = self.host + ns
        one.phases[phase] += ns
        one.own += ns
        if busy:
            self._use_cpu(phase, ns)

    def _use_cpu(self, phase: int, ns: Floats) -> None:
        self._now.cpu += ns
        if phase == BACKWARD:
            self._now.backward_cpu += ns

    @property
    def _now(self) -> Step:
        assert self._one is not None
        return self._one

    def _close(self, phase: int) -> None:
        """The host marks the end of a phase in its device's stream."""
        reached = np.maximum(self.host, self.device)
        self._now.device_phases[phase] += reached - self._mark
        self._mark = reached

    def _compute(self, phase: int, ns: Floats, *, scales: bool = True) -> None:
        """Do work of a rank: `ns` alone. Kernels that are slow, and more tokens, lengthen forward and backward."""
        one = self._now
        work = ns * self._jitter
        if scales:
            part = ns / (self._work_ns * (SHARES[FORWARD] + SHARES[BACKWARD]))
            work = work * self._tokens + self._extra[of.KERNEL] * part
        launch = LAUNCH_SHARE * ns if self.model.on_gpu else work
        began = np.maximum(self.device, self.host)
        self.host = self.host + launch
        one.phases[phase] += launch
        self._use_cpu(phase, launch)
        one.own += work
        if self.model.on_gpu:
            self.device = np.maximum(began + work, self.host)
            one.computed += work
        else:
            self.device = self.host
            one.computed += work
        if self._keep:
            one.kernels.append((began, began + work))

    def _collective(self, dimension: str, op: str, phase: int, size: Floats, ns: float, *, blocks: bool) -> Call:
        """Begin a collective of every group of a dimension. With `blocks` the ranks wait for it."""
        groups = self.layout.groups[dimension]
        at = self.device if self.model.on_gpu else self.host
        start = np.maximum(at, self._channels[dimension].pop(0))
        met = start[groups].max(axis=1)
        vary = np.exp(self.model.transfer_jitter * np.abs(self._transfer.standard_normal(len(groups))))
        for slow, factor in self._links:
            if slow == dimension:
                vary = vary * (1 + factor[groups].max(axis=1))
        largest = (size[groups] / max(1.0, float(size.mean()))).max(axis=1)
        end = np.empty(self.layout.world)
        end[groups] = (met + ns * vary * largest)[:, None]
        call = Call(dimension, op, size, start, end, self.host)
        self._channels[dimension].append(end)
        if self._keep:
            self._now.calls.append(call)
        if blocks:
            self._wait(phase, end)
        return call

    def _wait(self, phase: int, until: Floats) -> None:
        if self.model.on_gpu:
            self.device = np.maximum(self.device, until)
        else:
            waited = np.maximum(0.0, until - self.host)
            self._now.phases[phase] += waited
            self.host = self.host + waited
            self.device = self.host

    def _all_over(self, dimension: str) -> Floats:
        return np.asarray(np.max(self._channels[dimension], axis=0))

    def _plain(self, size: float) -> Floats:
        return np.full(self.layout.world, size)

    def _gradients(self, dimension: str, share: float) -> None:
        """Run backward with its gradients reduced behind it, bucket by bucket."""
        transfer = self.model.transfer_share * self._work_ns * share / BUCKETS
        for _ in range(BUCKETS):
            self._compute(BACKWARD, self._part(BACKWARD, 1 / BUCKETS))
            self._collective(dimension, "all_reduce", BACKWARD, self._plain(25e6), transfer, blocks=False)
        self._now.backward_end = self.host.copy()
        before = np.maximum(self.host, self.device)
        self._wait(BACKWARD, self._all_over(dimension))
        self._now.device_tail += np.maximum(self.host, self.device) - before

    def _part(self, phase: int, share: float) -> Floats:
        return np.full(self.layout.world, SHARES[phase] * share * self._work_ns)

    def _ddp(self) -> None:
        self._compute(FORWARD, self._part(FORWARD, 1.0))
        self._close(FORWARD)
        self._gradients(WORLD, 1.0)
        self._close(BACKWARD)

    def _fsdp(self) -> None:
        transfer = self.model.transfer_share * self._work_ns / (3 * LAYERS)
        for phase in (FORWARD, BACKWARD):
            ahead = self._collective(WORLD, "all_gather", phase, self._plain(50e6), transfer, blocks=False)
            for layer in range(LAYERS):
                self._wait(phase, ahead.end)
                if layer + 1 < LAYERS:
                    ahead = self._collective(WORLD, "all_gather", phase, self._plain(50e6), transfer, blocks=False)
                self._compute(phase, self._part(phase, 1 / LAYERS))
                if phase == BACKWARD:
                    self._collective(WORLD, "reduce_scatter", phase, self._plain(50e6), transfer, blocks=False)
            if phase == BACKWARD:
                before = np.maximum(self.host, self.device)
                self._wait(BACKWARD, self._all_over(WORLD))
                self._now.device_tail += np.maximum(self.host, self.device) - before
            self._close(phase)

    def _layers(self, dimension: str, op: str) -> None:
        """Run layers with two collectives each within them, then the gradients of the data parallel group."""
        transfer = self.model.transfer_share * self._work_ns * 0.5 / (4 * LAYERS)
        size = 8e6 * (1 + self._hot) if op == "all_to_all" else self._plain(8e6)
        for _ in range(LAYERS):
            for _half in range(2):
                self._compute(FORWARD, self._part(FORWARD, 1 / (2 * LAYERS)))
                self._collective(dimension, op, FORWARD, size, transfer, blocks=True)
        self._close(FORWARD)
        for _ in range(LAYERS - 1):
            for _half in range(2):
                self._compute(BACKWARD, self._part(BACKWARD, 1 / (4 * LAYERS)))
                self._collective(dimension, op, BACKWARD, size, transfer, blocks=True)
        rest = 1 - (LAYERS - 1) / (2 * LAYERS)
        outer = DP if DP in self.layout.groups else WORLD
        for _ in range(BUCKETS):
            self._compute(BACKWARD, self._part(BACKWARD, rest / BUCKETS))
            ns = self.model.transfer_share * self._work_ns * 0.5 / BUCKETS
            self._collective(outer, "all_reduce", BACKWARD, self._plain(25e6), ns, blocks=False)
        before = np.maximum(self.host, self.device)
        self._wait(BACKWARD, self._all_over(outer))
        self._now.device_tail += np.maximum(self.host, self.device) - before
        self._close(BACKWARD)

    def _tp(self) -> None:
        self._layers(TP, "all_reduce")

    def _ep(self) -> None:
        self._layers(EP, "all_to_all")

    def _pp(self) -> None:
        """Run 1F1B over the stages, then reduce the gradients of each stage."""
        stages, ranks = self.layout.stages, self.layout.world
        by_stage = np.arange(ranks).reshape(stages, -1)
        sent: dict[tuple[int, int, int], Floats] = {}
        orders = [_order(stage, stages) for stage in range(stages)]
        places = [0] * stages
        transfer = self.model.transfer_share * self._work_ns * 0.5 / (4 * MICRO)
        while any(place < len(order) for place, order in zip(places, orders, strict=True)):
            for stage in range(stages):
                while places[stage] < len(orders[stage]):
                    phase, batch = orders[stage][places[stage]]
                    source = stage - 1 if phase == FORWARD else stage + 1
                    if 0 <= source < stages and (phase, source, batch) not in sent:
                        break
                    if 0 <= source < stages:
                        ready = sent.pop((phase, source, batch))
                        self._receive(by_stage[source], by_stage[stage], ready, transfer, phase=phase)
                    self._compute_of(phase, by_stage[stage], 1 / MICRO)
                    sent[phase, stage, batch] = self.device[by_stage[stage]].copy()
                    places[stage] += 1
        self._close(FORWARD)
        outer = DP if DP in self.layout.groups else WORLD
        if self.layout.shape[1] > 1:
            ns = self.model.transfer_share * self._work_ns * 0.5
            self._collective(outer, "reduce_scatter", BACKWARD, self._plain(100e6), ns, blocks=True)
        self._collective(WORLD, "all_reduce", BACKWARD, self._plain(8.0), 0.1 * MS, blocks=True)
        self._close(BACKWARD)

    def _compute_of(self, phase: int, who: Ints, share: float) -> None:
        one, ns = self._now, SHARES[phase] * share * self._work_ns
        part = ns / (self._work_ns * (SHARES[FORWARD] + SHARES[BACKWARD]))
        work = ns * self._jitter[who] * self._tokens[who] + self._extra[of.KERNEL][who] * part
        began = np.maximum(self.device[who], self.host[who])
        self.host[who] += LAUNCH_SHARE * ns
        one.phases[phase, who] += LAUNCH_SHARE * ns
        one.cpu[who] += LAUNCH_SHARE * ns
        one.own[who] += work
        one.computed[who] += work
        self.device[who] = np.maximum(began + work, self.host[who])
        if self._keep:
            start, end = np.full(self.layout.world, np.nan), np.full(self.layout.world, np.nan)
            start[who], end[who] = began, began + work
            one.kernels.append((start, end))

    def _receive(self, by: Ints, to: Ints, ready: Floats, ns: float, *, phase: int) -> None:
        """Wait for what the stage beside has computed. The transfer begins when both are there."""
        posted = np.maximum(self.device[to], self.host[to])
        vary = np.exp(self.model.transfer_jitter * np.abs(self._transfer.standard_normal(len(to))))
        end = np.maximum(posted, ready) + ns * vary
        self.device[to] = np.maximum(self.device[to], end)
        if self._keep:
            empty = np.full(self.layout.world, np.nan)
            for op, who, start in (("recv", to, posted), ("send", by, ready)):
                starts, ends = empty.copy(), empty.copy()
                starts[who], ends[who] = start, end
                self._now.calls.append(Call(PP, op, self._plain(4e6 + phase), starts, ends, self.host.copy()))


def _order(stage: int, stages: int) -> list[tuple[int, int]]:
    """Return the forwards and backwards of a stage in 1F1B.

    >>> _order(1, 2)[:4]
    [(1, 0), (2, 0), (1, 1), (2, 1)]
    """
    warm = min(MICRO, stages - stage - 1)
    order = [(FORWARD, batch) for batch in range(warm)]
    for batch in range(MICRO - warm):
        order += [(FORWARD, warm + batch), (BACKWARD, batch)]
    return order + [(BACKWARD, batch) for batch in range(MICRO - warm, MICRO)]
