"""List the worlds, by family. Each row is there with an even seed, to tune rules on, and with an odd one, held out.

Begins, ranks and sizes are drawn by the seed, so that a held-out world is another world, not the same one with other
noise.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from tests.second_table import disturbances as of
from tests.second_table.disturbances import Cost, Sign, When
from tests.second_table.layout import DP, EP, PP, TP, WORLD, Layout, make_layout
from tests.second_table.physics import Model
from tests.second_table.reporting import Sampling
from tests.second_table.worlds import QUIET, RANKS, RUN_WIDE, WORK, Gap, Truth, World

UNTIMED: Final = Sampling(times_collectives=False)
SAYS: Final = {
    of.LOADER: frozenset({"data_loading", "data_bound"}),
    of.BUSY: frozenset({"host_cpu"}),
    of.ASLEEP: frozenset({"unseen_wait"}),
    of.CORE: frozenset({"cpu_pressure"}),
    of.GC: frozenset({"garbage_collection"}),
    of.KERNEL: frozenset({"gpu_compute"}),
    of.SAVE: frozenset({"checkpoint", "checkpoints", "periodic_work", "unseen_wait"}),
    of.COMPILE: frozenset({"recompilation"}),
    of.LINK: frozenset({"slow_link"}),
    of.WORK: frozenset({"more_work", "uneven_work", "imbalance", "data_imbalance"}),
}
"""Names of causes, and kinds of finding, that say each part."""
ON_CPU: Final = {of.KERNEL: frozenset({"host_cpu"})}

Draw = random.Random
Family = Callable[[Draw], Iterator[World]]


def ddp(dp: int, **more: Any) -> tuple[Layout, Model]:
    per_node = more.pop("per_node", 8)
    return make_layout(dp=dp, per_node=per_node), Model(**{"kind": "ddp", "step_ms": 200, **more})


def slow(
    family: str, about: str, where: tuple[Layout, Model], cost: Cost, steps: int, *,
    causes: frozenset[str] = frozenset(), **more: Any,
) -> World:  # fmt: skip
    """Return a world in which these ranks are slow by one cost."""
    layout, model = where
    said = causes or (SAYS if model.on_gpu else {**SAYS, **ON_CPU})[cost.part]
    older = more.pop("is_older", False)
    truth = Truth(
        level=RANKS, who=frozenset(cost.ranks), causes=said, begin=cost.when.begin, costs=(0,), is_older=older
    )  # fmt: skip
    return World(
        family=family, about=about, layout=layout, model=model, steps=steps, costs=(cost,), truths=(truth,), **more
    )  # fmt: skip


def quiet(family: str, about: str, where: tuple[Layout, Model], steps: int, **more: Any) -> World:
    layout, model = where
    return World(
        family=family, about=about, layout=layout, model=model, steps=steps, truths=(Truth(level=QUIET),), **more
    )  # fmt: skip


def _healthy(_: Draw) -> Iterator[World]:
    """Yield runs in which nothing is wrong, of many kinds."""
    name = "healthy"
    for ranks in (2, 3, 4, 8):
        yield quiet(name, f"ddp {ranks}, CPU", ddp(ranks, step_ms=40, on_gpu=False), 4000, pass_s=5)
        yield quiet(name, f"ddp {ranks}, GPU", ddp(ranks, step_ms=60), 3000, pass_s=5)
    yield quiet(name, "ddp 64", ddp(64, step_ms=50), 3000, pass_s=10)
    yield quiet(name, "ddp 256", ddp(256, step_ms=100), 800, pass_s=10)
    yield quiet(name, "ddp 16, untimed", ddp(16, step_ms=50), 4000, pass_s=5, sampling=UNTIMED)
    jittery = ddp(16, step_ms=80, jitter=0.03, stall_chance=0.01)
    yield quiet(name, "ddp 16, jitter 3 %", jittery, 2500, pass_s=5, true_kinds=frozenset({"uneven_work"}))
    for kind, layout in (
        ("fsdp", make_layout(dp=16)), ("tp", make_layout(dp=4, tp=4)), ("ep", make_layout(dp=16, ep=4)),
        ("pp", make_layout(pp=4, dp=2)),
    ):  # fmt: skip
        yield quiet(name, kind, (layout, Model(kind=kind, step_ms=200)), 1500, pass_s=5)
    at_once = ddp(8, gc_every=100, gc_ms=80.0)
    yield quiet(name, "garbage collection of all ranks at once, each 100 steps", at_once, 1500, pass_s=5)
    everybody = tuple(range(8))
    for every in (200, 1000):
        saves = Cost(part=of.SAVE, ranks=everybody, when=When(begin=every - 1, every=every), ms=400)
        yield quiet(name, f"all ranks save for 0.4 s each {every} steps", ddp(8), 1500, pass_s=5, costs=(saves,))


def _signs(draw: Draw) -> Iterator[World]:
    """Yield signs without a cost, alone and beside a slowness of the same rank that begins later."""
    layouts = (
        ("tp", (make_layout(dp=4, tp=4), Model(kind="tp", step_ms=200))),
        ("pp", (make_layout(pp=4, dp=4), Model(kind="pp", step_ms=200))),
        ("dp 48", ddp(48)),
    )
    for sign, (label, where) in itertools.product((of.XID, of.NARROW, of.RETRIES, of.REMAPPED), layouts):
        rank = draw.randrange(where[0].world)
        signs = (Sign(kind=sign, ranks=(rank,)),)
        begin = 100 + draw.randrange(20)
        part = draw.choice((of.BUSY, of.ASLEEP))
        cost = Cost(part=part, ranks=(rank,), when=When(begin=begin), ms=30)
        kinds = frozenset({"memory_pressure"}) if sign == of.RETRIES else frozenset[str]()
        yield slow("old sign", f"{sign}, then {part}, {label}", where, cost, 900, signs=signs, true_kinds=kinds)
    for sign in (of.XID, of.NARROW, of.RETRIES, of.REMAPPED, of.SLOW_CLOCK, of.HOT, of.POWER):
        signs = (Sign(kind=sign, ranks=(draw.randrange(8),)),)
        yield quiet("sign alone", sign, ddp(8), 600, signs=signs)


def _steady(draw: Draw) -> Iterator[World]:
    """Yield one rank that becomes slow for good, by each part, on several layouts."""
    name = "steady"
    begin = 80 + draw.randrange(60)
    parts = (of.LOADER, of.BUSY, of.ASLEEP, of.CORE, of.GC, of.KERNEL)
    for part, on_gpu in itertools.product(parts, (True, False)):
        cost = Cost(part=part, ranks=(draw.randrange(8),), when=When(begin=begin), ms=draw.choice((14, 25, 60)))
        where = ddp(8, on_gpu=on_gpu)
        yield slow(name, f"{part} {cost.ms:g} ms, ddp 8, {_on(on_gpu)}", where, cost, 900 if on_gpu else 500)
    for sign, cause in ((of.HOT, "gpu_thermal_throttle"), (of.POWER, "gpu_power_cap"), (of.XID, "gpu_fault")):
        when = When(begin=begin)
        rank = draw.randrange(16)
        cost = Cost(part=of.KERNEL, ranks=(rank,), when=when, share=0.3)
        signs = (Sign(kind=sign, ranks=(rank,), when=when),)
        yield slow(name, f"kernels 1.33 x, {sign}", ddp(16), cost, 900, causes=frozenset({cause}), signs=signs)
    for kind, layout in (
        ("fsdp", make_layout(dp=16)), ("tp", make_layout(dp=4, tp=4)), ("ep", make_layout(dp=16, ep=4)),
        ("pp", make_layout(pp=4, dp=4)),
    ):  # fmt: skip
        cost = Cost(part=of.BUSY, ranks=(draw.randrange(16),), when=When(begin=begin), ms=30)
        yield slow(name, f"busy 30 ms, {kind}", (layout, Model(kind=kind, step_ms=200)), cost, 500)
    cost = Cost(part=of.ASLEEP, ranks=(draw.randrange(8),), when=When(begin=begin), ms=30)
    yield slow(name, "asleep 30 ms, untimed", ddp(8), cost, 900, sampling=UNTIMED)
    for timed in (False, True):  # windows that have slowed training end for good
        sampling = Sampling(times_collectives=timed, windows=False)
        yield slow(name, f"no windows, {'timed' if timed else 'tails only'}", ddp(8), cost, 600, sampling=sampling)
    link = Cost(part=of.LINK, ranks=(draw.randrange(16),), when=When(begin=begin), share=4.0, dimension=TP)
    layout = make_layout(dp=4, tp=4)
    row = link.ranks[0] // 4
    wide = replace(link, ranks=tuple(range(4 * row, 4 * row + 4)))
    yield slow(name, "link 5 x, tp", (layout, Model(kind="tp", step_ms=200, transfer_share=0.3)), wide, 450)


def _on(gpu: bool) -> str:
    return "GPU" if gpu else "CPU"


def _rare(draw: Draw) -> Iterator[World]:
    """Yield a rank that stops every so many steps."""
    name = "periodic"
    for base_ms, every in itertools.product((3, 20, 55), (4, 10)):
        part = draw.choice((of.ASLEEP, of.BUSY, of.COMPILE))
        begin = 60 + draw.randrange(40)
        when = When(begin=begin, every=every)
        cost = Cost(part=part, ranks=(1,), when=when, ms=draw.choice((300, 400, 500)))
        steps = begin + round(70_000 / (base_ms + cost.ms / every))
        where = ddp(2, step_ms=base_ms, on_gpu=False)
        yield slow(name, f"2 ranks, {base_ms} ms, {part} {cost.ms:g} ms each {every}", where, cost, steps)
    for every, ranks in ((25, 3), (60, 4), (80, 8), (120, 4), (300, 8), (1000, 4)):
        begin = 40 + draw.randrange(every)
        cost = Cost(part=of.ASLEEP, ranks=(draw.randrange(ranks),), when=When(begin=begin, every=every), ms=2000)
        step_ms = 100 if every < 1000 else 25
        steps = begin + (8 * every if every < 1000 else 6 * every)
        where = ddp(ranks, step_ms=step_ms, on_gpu=every in (80, 300))
        yield slow(name, f"2 s each {every}, {ranks} ranks", where, cost, steps, pass_s=3)
    begin = 2000 + draw.randrange(1000)
    cost = Cost(part=of.ASLEEP, ranks=(2,), when=When(begin=begin, every=5000), ms=20_000)
    yield slow(name, "20 s each 5,000, 4 ranks", ddp(4, step_ms=15, on_gpu=False), cost, 18_000, pass_s=5)
    cost = Cost(part=of.SAVE, ranks=(0,), when=When(begin=59, every=60), ms=1500)
    yield slow("checkpoint", "rank 0 saves for 1.5 s each 60, CPU", ddp(4, step_ms=60, on_gpu=False), cost, 900)
    yield slow("checkpoint", "rank 0 saves for 1.5 s each 60, GPU", ddp(8, step_ms=60), cost, 900)
    by_chance = Cost(part=of.ASLEEP, ranks=(3,), when=When(begin=50, chance=0.04), ms=800, seed=draw.randrange(999))
    yield slow(name, "0.8 s in 4 % of the steps", ddp(8, step_ms=80), by_chance, 900)


def _storms(draw: Draw) -> Iterator[World]:
    """Yield garbage collection on all ranks, each at steps of its own."""
    for ranks, every, seconds, on_gpu in (
        (16, 100, 120, True), (16, 30, 120, True), (3, 30, 90, False), (3, 100, 120, False), (16, 30, 20, True),
    ):  # fmt: skip
        begin = 60 + draw.randrange(30)
        when = When(begin=begin, every=every, apart=True)
        cost = Cost(part=of.GC, ranks=tuple(range(ranks)), when=when, ms=300, seed=draw.randrange(999))
        layout, model = ddp(ranks, step_ms=80, on_gpu=on_gpu)
        step_s = 0.085 + 0.3 * ranks / every
        truth = Truth(level=RUN_WIDE, causes=SAYS[of.GC], begin=begin, costs=(0,))
        about = f"{ranks} ranks, each {every} steps, {seconds} s, {_on(on_gpu)}"
        yield World(
            family="gc storm", about=about, layout=layout, model=model, steps=begin + round(seconds / step_s),
            costs=(cost,), truths=(truth,), true_kinds=frozenset({"uneven_work"}), pass_s=2,
        )  # fmt: skip


def _sets(draw: Draw) -> Iterator[World]:
    """Yield nodes that are slow together."""
    begin = 80 + draw.randrange(20)
    for ranks, share, since, nodes in (
        (128, 0.055, 0, 4), (128, 0.055, begin, 4), (64, 0.08, begin, 3), (64, 0.08, begin, 4), (64, 0.27, begin, 2),
        (64, 0.27, 0, 3), (64, 0.27, begin, 4),
    ):  # fmt: skip
        first = draw.randrange(ranks // 8 - nodes)
        layout, model = ddp(ranks, step_ms=250)
        who = layout.on_nodes(range(first, first + nodes))
        cost = Cost(part=of.KERNEL, ranks=who, when=When(begin=since), share=share)
        about = f"{nodes} of {ranks // 8} nodes, {1 + share / 0.9:.2f} x, since {'the start' if not since else 'later'}"
        yield slow("set of nodes", about, (layout, model), cost, 400, pass_s=4)
    for part in (of.BUSY, of.LOADER):  # two ranks anywhere
        who = tuple(sorted(draw.sample(range(16), 2)))
        cost = Cost(part=part, ranks=who, when=When(begin=begin), ms=30)
        yield slow("set of ranks", f"2 of 16, {part} 30 ms", ddp(16), cost, 500)


def _bouts(draw: Draw) -> Iterator[World]:
    """Yield slowness that comes, goes, or grows."""
    begin = 200 + draw.randrange(40)
    rank = draw.randrange(16)
    dip = When(begin=begin, bouts=((begin, begin + 38),))
    cost = Cost(part=of.KERNEL, ranks=(rank,), when=dip, share=0.45)
    hot = (Sign(kind=of.SLOW_CLOCK, ranks=(rank,), when=dip),)
    causes = frozenset({"gpu_slow_clock"})
    yield slow("bouts", "a clock that dips for 38 of 460 steps", ddp(16), cost, 460, causes=causes, signs=hot, pass_s=1)
    for length, gap in ((20, 60), (40, 120)):
        spans = tuple((first, first + length) for first in range(begin, 900, gap))
        cost = Cost(part=of.ASLEEP, ranks=(rank % 8,), when=When(begin=begin, bouts=spans), ms=60)
        yield slow("bouts", f"{length} of {gap} steps, asleep 60 ms", ddp(8), cost, 900)
    ramp = Cost(part=of.BUSY, ranks=(rank % 8,), when=When(begin=begin, ramp=400), ms=80)
    yield slow("growth", "a rank, to 80 ms within 400 steps", ddp(8), ramp, 800)
    layout, model = ddp(8)
    grows = Cost(part=of.LOADER, ranks=tuple(range(8)), when=When(begin=begin, ramp=300), ms=80)
    truth = Truth(level=RUN_WIDE, causes=SAYS[of.LOADER] | {"unattributed"}, begin=begin, costs=(0,))
    yield World(
        family="growth", about="everybody's loader, to 80 ms within 300 steps", layout=layout, model=model, steps=800,
        costs=(grows,), truths=(truth,),
    )  # fmt: skip


def _work(draw: Draw) -> Iterator[World]:
    """Yield ranks that have more work."""
    layout = make_layout(dp=16, ep=4)
    hot = 4 * draw.randrange(4) + draw.randrange(4)
    for begin in (0, 100):
        cost = Cost(part=of.WORK, ranks=(hot,), when=When(begin=begin), share=0.4, operators=False)
        truth = Truth(level=WORK, who=frozenset({hot}), causes=SAYS[of.WORK], begin=begin, costs=(0,))
        yield World(
            family="more work", about=f"a hot expert, 1.4 x, since {begin}", layout=layout, steps=500,
            model=Model(kind="ep", step_ms=200), costs=(cost,), truths=(truth,), sampling=Sampling(tokens=False),
        )  # fmt: skip
    layout, model = ddp(8)
    begin = 150 + draw.randrange(30)
    cost = Cost(part=of.WORK, ranks=tuple(range(8)), when=When(begin=begin), share=1.0, operators=True)
    yield World(
        family="more work", about="the sequence length doubles on all", layout=layout, model=model, steps=500,
        costs=(cost,), truths=(Truth(level=QUIET),), sampling=Sampling(tokens=True),
    )  # fmt: skip
    packed = ddp(8, token_jitter=0.12)
    truth = Truth(level=QUIET)
    yield World(
        family="more work", about="packing: 12 % more or fewer tokens", layout=packed[0], model=packed[1], steps=700,
        truths=(truth,), sampling=Sampling(tokens=True), true_kinds=frozenset({"uneven_work"}),
    )  # fmt: skip
    who = tuple(sorted(draw.sample(range(8), 2)))
    cost = Cost(part=of.WORK, ranks=who, when=When(), share=0.3, operators=True)
    truth = Truth(level=WORK, who=frozenset(who), causes=SAYS[of.WORK], begin=0, costs=(0,))
    yield World(
        family="more work", about="2 of 8 have 1.3 x the tokens by design", layout=layout, model=model, steps=500,
        costs=(cost,), truths=(truth,), sampling=Sampling(tokens=True),
    )  # fmt: skip


def _turns(draw: Draw) -> Iterator[World]:
    """Yield culprits that take turns: nobody is to blame."""
    for ranks, turns, on_gpu in (
        (2, 25, False),
        (3, 25, False),
        (2, 0, False),
        (3, 0, False),
        (8, 25, True),
        (8, 0, True),
    ):
        begin = 61
        when = When(begin=begin, turns=turns, dice=not turns)
        cost = Cost(part=of.LOADER, ranks=tuple(range(ranks)), when=when, ms=60, seed=draw.randrange(999))
        layout, model = ddp(ranks, step_ms=20 if not on_gpu else 80, on_gpu=on_gpu)
        truth = Truth(level=RUN_WIDE, causes=SAYS[of.LOADER] | {"uneven_work"}, begin=begin, costs=(0,))
        yield World(
            family="turns", about=f"{ranks} ranks, {f'{turns} steps each' if turns else 'at random'}, {_on(on_gpu)}",
            layout=layout, model=model, steps=1800 if ranks < 8 else 900, costs=(cost,), truths=(truth,),
            true_kinds=frozenset({"uneven_work", "data_bound"}),
        )  # fmt: skip


def _reports(draw: Draw) -> Iterator[World]:
    """Yield collectors that start late, faults older than what is kept, and reports that are late or lost."""
    cost = Cost(part=of.ASLEEP, ranks=(draw.randrange(8),), when=When(begin=100), ms=40)
    yield slow("late", "the collector starts after 40 s and gets all", ddp(8), cost, 900, late_s=40)
    yield slow("late", "and gets nothing from before", ddp(8), cost, 900, late_s=60, forgets=True, is_older=True)
    old = replace(cost, when=When(begin=60))
    cpu = ddp(8, step_ms=30, on_gpu=False)
    yield slow(
        "late",
        "the collector starts after 45 s of 30 ms steps and gets nothing from before",
        cpu,
        old,
        2000,
        late_s=45,
        forgets=True,
        is_older=True,
    )
    everybody = tuple(range(8))
    for lost in (False, True):
        gaps = (Gap(ranks=everybody, begin_s=10, end_s=35, lost=lost),)
        yield slow("late", f"all reports of 25 s {'lost' if lost else 'late'}", ddp(8), cost, 700, gaps=gaps)
        some = (Gap(ranks=(1, 2), begin_s=20, end_s=50, lost=lost),)
        yield slow("late", f"2 ranks' of 30 s {'lost' if lost else 'late'}", ddp(8), cost, 700, gaps=some)
        yield quiet("late", f"healthy, all reports of 25 s {'lost' if lost else 'late'}", ddp(8), 700, gaps=gaps)


def _loaders(_: Draw) -> Iterator[World]:
    """Yield CPU runs that are bound by their loaders: 12 of 16 ms."""
    for ranks in (1, 2):
        layout, model = ddp(ranks, step_ms=4, data_ms=12, on_gpu=False)
        yield World(
            family="loader", about=f"12 of 16 ms, {ranks} ranks", layout=layout, model=model, steps=1500, pass_s=1,
            truths=(Truth(level=RUN_WIDE, causes=frozenset({"data_bound"})),), true_kinds=frozenset({"data_bound"}),
        )  # fmt: skip


def _two(draw: Draw) -> Iterator[World]:
    """Yield worlds of two, and compilation that comes late."""
    begin = 120 + draw.randrange(40)
    for on_gpu in (True, False):
        cost = Cost(part=of.BUSY, ranks=(1,), when=When(begin=begin), ms=25)
        yield slow("two", f"one becomes slow, {_on(on_gpu)}", ddp(2, step_ms=100, on_gpu=on_gpu), cost, 1000)
        faster = Cost(part=of.KERNEL, ranks=(1,), when=When(begin=0, end=begin), share=0.3)
        both = Cost(part=of.KERNEL, ranks=(0,), when=When(begin=0), share=0.3)
        layout, model = ddp(2, step_ms=100, on_gpu=on_gpu)
        yield World(
            family="two", about=f"one becomes faster, {_on(on_gpu)}", layout=layout, model=model, steps=1000,
            costs=(faster, both), truths=(Truth(level=QUIET),), true_kinds=frozenset({"imbalance"}),
        )  # fmt: skip
    late = Cost(part=of.COMPILE, ranks=(1, 4), when=When(begin=begin, end=begin + 3), ms=6000)
    yield slow("two", "2 of 8 compile late for 18 s", ddp(8), late, 500)


def _short(_: Draw) -> Iterator[World]:
    """Yield runs of 8 s."""
    cost = Cost(part=of.ASLEEP, ranks=(1,), when=When(begin=30), ms=40)
    for ranks in (2, 4):
        where = ddp(ranks, step_ms=30, on_gpu=False)
        yield slow("short", f"8 s, {ranks} ranks, asleep 40 ms", where, cost, 115, pass_s=1)
        yield quiet("short", f"8 s, {ranks} ranks, healthy", where, 230, pass_s=1)


def _mixed(draw: Draw) -> Iterator[World]:
    """Yield two causes of one rank, the first of them the larger, and two culprits with causes of their own."""
    begin, rank = 100 + draw.randrange(30), draw.randrange(8)
    layout, model = ddp(8)
    pairs = ((of.LOADER, of.BUSY), (of.ASLEEP, of.LOADER))
    for major, minor in pairs:
        costs = tuple(
            Cost(part=part, ranks=(rank,), when=When(begin=begin), ms=ms) for part, ms in ((major, 36), (minor, 24))
        )
        truth = Truth(level=RANKS, who=frozenset({rank}), causes=SAYS[major], begin=begin, costs=(0, 1))
        yield World(
            family="mixed", about=f"60 % {major}, 40 % {minor}", layout=layout, model=model, steps=900, costs=costs,
            truths=(truth,),
        )  # fmt: skip
    other = (rank + 3) % 8
    costs = (
        Cost(part=of.LOADER, ranks=(rank,), when=When(begin=begin), ms=50),
        Cost(part=of.BUSY, ranks=(other,), when=When(begin=begin + 80), ms=30),
    )
    truths = tuple(
        Truth(level=RANKS, who=frozenset(cost.ranks), causes=SAYS[cost.part], begin=cost.when.begin, costs=(place,))
        for place, cost in enumerate(costs)
    )
    yield World(
        family="mixed", about="two ranks, two causes", layout=layout, model=model, steps=900, costs=costs, truths=truths
    )  # fmt: skip


def _large(draw: Draw) -> Iterator[World]:
    """Yield worlds of 1,024 and 4,096 ranks."""
    for ranks in (1024, 4096):
        rank = draw.randrange(ranks)
        cost = Cost(part=of.KERNEL, ranks=(rank,), when=When(begin=30), share=0.3)
        where = ddp(ranks, step_ms=500)
        yield slow("large", f"kernels 1.33 x, {ranks}", where, cost, 60, pass_s=5, sampling=UNTIMED)
    yield quiet("large", "healthy, 1024", ddp(1024, step_ms=250), 120, pass_s=10, sampling=UNTIMED)


FAMILIES: Final[tuple[Family, ...]] = (
    _healthy, _signs, _steady, _rare, _storms, _sets, _bouts, _work, _turns, _reports, _loaders, _two, _short, _mixed,
    _large,
)  # fmt: skip


def worlds(draw: int = 0) -> Iterator[World]:
    """Yield every world: each row with an even and an odd seed. Those of draw 0 are the table; others may be looked at,
    each of them.
    """
    for place, family in enumerate(FAMILIES):
        for parity in (0, 1):
            rows = family(random.Random(1000 * place + 10_000_000 * draw + parity))
            for row, world in enumerate(rows):
                yield replace(world, seed=1_000_000 * draw + 10_000 * (place + 1) + 2 * row + parity)


__all__ = ["DP", "EP", "FAMILIES", "PP", "TP", "WORLD", "ddp", "quiet", "slow", "worlds"]
