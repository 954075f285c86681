"""Compare where the training threads of ranks were, by samples: which line costs a rank time that its peer does not
spend there, and at which line the ranks of a hang are. Pure.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import msgspec

from rankscope.measure.line_samples import (
    BY_LIBRARY,
    HAND_OVER,
    IDLE,
    NO_STEP,
    STAGES,
    SampledLoader,
    SampledStack,
    SampledStep,
    SampledWorker,
)
from rankscope.measure.messages import SamplesTaken
from rankscope.measure.stalls import describe_frame
from rankscope.measure.text import to_line
from rankscope.measure.units import format_duration

LINES_MAX: Final = 12
"""Lines kept, those that differ most."""
SHARE_MIN: Final = 0.05
"""Share of a step from which on a difference names a line: a hundred samples are met by chance by so few."""
SAMPLES_MIN: Final = 20
"""Samples of a single step from which on its lines are compared."""
STEPS_MIN: Final = 2
"""Steps that may have fewer: a call that keeps the interpreter's lock for a second is met once in each, with its
time.
"""
EXPLAINS: Final = 0.25
"""Share of what a finding costs a step from which on a line is named for it: more may be spread over other lines."""
LINE_HOLDS: Final = 0.6
"""Share of what its function costs from which on a line stands for it."""
NONE_BELOW: Final = 0.01
"""Share of what a line costs a rank below which it is said to cost its peer nothing: a sample or two."""
BUSY_CPU_RATIO: Final = 0.2
"""Cores in use from which a stalled thread computes. One that waits and looks now and then uses a hundredth."""
VISITED_SHARE_MIN: Final = 0.1
"""Share of the samples from which on a line counts as one that a stalled thread comes to again and again."""
TEXT_LENGTH_MAX: Final = 200
LOADER: Final = "torch.utils.data."
"""Begin of what a line calls that waits for a data loader."""
BATCHES_MIN: Final = 2
"""Batches from which on the time of one is known: the first and the last are not whole."""
WORKER_RATIO: Final = 1.5
"""A worker stands out from this multiple of the median batch of the others on."""
QUEUED_MIN: Final = 1.0
"""Batches in the mean from which on a queue is told."""
FOR_ANOTHER: Final = "futex"
"""What the kernel says of a thread that another thread of its process wakes."""
MOSTLY: Final = 0.5
"""Share of a worker's time from which on it is told by what it does."""


class LineCost(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the script, `train.py:104 (augment)`, and what it costs: ns of a step on the rank, and on its peer
    (None without one); of a hang, ns of the time that was sampled. `call`, `inside` and `waits_in` are as in
    SampledStack; `ranks` are those that it is about. `stack` is the way to it, outermost first.
    """

    line: str
    ns: float
    peer_ns: float | None = None
    call: str = ""
    inside: str = ""
    waits_in: str = ""
    ranks: tuple[int, ...] = ()
    stack: tuple[str, ...] = ()

    @property
    def excess_ns(self) -> float:
        """By how much it costs the rank more than its peer, in ns."""
        return self.ns - (self.peer_ns or 0.0)


class WorkerCost(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of a data loader, number `number` of `count`: the time that it works on a batch in ns (None: it began
    none), the share of its time in each of STAGES, and the line that takes most of a batch, with its time in one.
    """

    number: int
    count: int
    batch_ns: float | None = None
    stage_ratios: Mapping[str, float] = {}
    line: LineCost | None = None


class LoaderState(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of a data loader with `workers`, in the mean of the samples: batches that were `ready`, those of them
    that came `early`, before the one that is next, and those that waited `unpinned` for the thread that pins memory;
    None without one.
    """

    workers: int
    ready: float
    early: float
    unpinned: float | None = None


class SampledLines(msgspec.Struct, frozen=True, kw_only=True):
    """What samples say of a finding: a sentence, and the lines behind it. They are of `steps` steps of `rank`, from
    `first_step` to `last_step`, and where `is_same_steps` of these steps of `peer` too; None without one, and of a
    hang, which has no steps. `is_named`: a line stands out. `workers` are those of the rank's data
    loaders, where it waits for them, and `loader` has its queues then. `threads` are lines of its other threads, where
    it waits for one of these.
    """

    sentence: str
    rank: int
    peer: int | None = None
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    is_same_steps: bool = True
    is_named: bool = False
    lines: tuple[LineCost, ...] = ()
    workers: tuple[WorkerCost, ...] = ()
    loader: LoaderState | None = None
    threads: tuple[LineCost, ...] = ()


class _Line(NamedTuple):
    """What tells lines apart."""

    file: str
    number: int
    function: str
    call: str
    inside: str


class _Costs(NamedTuple):
    """The time of each line in a step, in ns, and the stack that has most of it; the time of a step."""

    ns: Mapping[_Line, float]
    stacks: Mapping[_Line, SampledStack]
    step_ns: float


def compare_lines(
    rank: int,
    taken: SamplesTaken,
    peer: int | None,
    peer_taken: SamplesTaken | None,
    expected_ns: float = 0.0,
    *,
    each: str = "step",
) -> SampledLines | None:
    """Return which lines cost a rank more than its peer, in the steps of which both have samples; where there are none,
    in the steps of each. `expected_ns` is by how much a step is longer according to the finding, 0 where that is not
    known; `each` is the word for one of these steps. None where the rank has too few samples.
    """
    own_steps = {sampled.step for sampled in taken.steps}
    peer_steps = set() if peer_taken is None else {sampled.step for sampled in peer_taken.steps}
    if not own_steps or (taken.samples < SAMPLES_MIN and len(own_steps) < STEPS_MIN):
        return None
    common = own_steps & peer_steps
    costs = _add_up(taken.steps, taken.stacks, common or own_steps)
    peer_costs = None
    if peer_taken is not None and peer_steps:
        peer_costs = _add_up(peer_taken.steps, peer_taken.stacks, common or peer_steps)
    lines = _rank_lines((rank,), costs, peer_costs)
    least_ns = max(SHARE_MIN * costs.step_ns, EXPLAINS * expected_ns)
    beside = None if peer_costs is None else peer
    sentence, is_named = _write(rank, lines, beside, least_ns, each)
    steps = common or own_steps
    workers: tuple[WorkerCost, ...] = ()
    loader: LoaderState | None = None
    if lines[0].call.startswith(LOADER):
        workers = tuple(map(measure_worker, taken.workers))
        theirs = () if peer_taken is None else tuple(map(measure_worker, peer_taken.workers))
        loader = read_loader(taken.loader)
        of_workers = describe_workers(workers, peer, theirs), describe_queues(loader, workers)
        sentence = " ".join(filter(None, (sentence, *of_workers)))
    threads: list[LineCost] = []
    if is_named and lines[0].waits_in == FOR_ANOTHER and not workers:
        threads = _rank_threads(taken, None if peer_costs is None else peer_taken, steps, common or peer_steps)
        sentence = " ".join(filter(None, (sentence, _describe_threads(threads, beside, least_ns, each))))
    return SampledLines(
        sentence=sentence,
        rank=rank,
        peer=beside,
        steps=len(steps),
        first_step=min(steps),
        last_step=max(steps),
        is_same_steps=bool(common) or peer_costs is None,
        is_named=is_named,
        lines=tuple(lines[:LINES_MAX]),
        workers=workers,
        loader=loader,
        threads=tuple(threads[:LINES_MAX]),
    )


def _add_up(sampled: Sequence[SampledStep], stacks: Sequence[SampledStack], steps: set[int]) -> _Costs:
    total_ns: dict[_Line, float] = defaultdict(float)
    most: dict[_Line, tuple[int, SampledStack]] = {}
    by_stack: dict[int, int] = defaultdict(int)
    counted = [one for one in sampled if one.step in steps]
    for step in counted:
        for place, ns in step.stack_ns:
            by_stack[place] += ns
    for place, ns in by_stack.items():
        stack = stacks[place] if place < len(stacks) else SampledStack()
        line = _to_line(stack)
        total_ns[line] += ns / len(counted)
        if line not in most or ns > most[line][0]:
            most[line] = ns, stack
    step_ns = sum(one.duration_ns for one in counted) / max(1, len(counted))
    return _Costs(dict(total_ns), {line: stack for line, (_, stack) in most.items()}, step_ns)


def _to_line(stack: SampledStack) -> _Line:
    if not stack.frames:
        return _Line("", 0, "", stack.call, stack.inside)
    frame = stack.frames[-1]
    return _Line(frame.file, frame.line, frame.function, stack.call, stack.inside)


def _rank_lines(ranks: tuple[int, ...], costs: _Costs, peer: _Costs | None) -> list[LineCost]:
    """Return the lines of both, those that cost the rank most more first."""
    known = costs.ns.keys() | (set() if peer is None else peer.ns.keys())
    lines = [
        _describe(
            costs.stacks[line] if line in costs.stacks else peer.stacks[line],  # type: ignore[union-attr]
            ns=costs.ns.get(line, 0.0),
            peer_ns=None if peer is None else peer.ns.get(line, 0.0),
            ranks=ranks,
        )
        for line in known
    ]
    return sorted(lines, key=lambda one: (-one.excess_ns, one.line))


def _describe(stack: SampledStack, *, ns: float, peer_ns: float | None = None, ranks: tuple[int, ...]) -> LineCost:
    way = tuple(to_line(describe_frame(frame), TEXT_LENGTH_MAX) for frame in stack.frames)
    return LineCost(
        line=way[-1] if way else "",
        ns=ns,
        peer_ns=peer_ns,
        call=to_line(stack.call, TEXT_LENGTH_MAX),
        inside=to_line(stack.inside, TEXT_LENGTH_MAX),
        waits_in=to_line(stack.waits_in, TEXT_LENGTH_MAX),
        ranks=ranks,
        stack=way,
    )


def describe_line(one: LineCost, *, line: str = "") -> str:
    """Return a line with what it calls, as text.

    >>> describe_line(LineCost(line="train.py:104 (augment)", ns=1.0, call="time.sleep", waits_in="sleep"))
    'in time.sleep, called at train.py:104 (augment)'
    >>> describe_line(LineCost(line="train.py:57 (load)", ns=1.0, call="file.read", waits_in="read of a.bin (nfs4)"))
    'in file.read, called at train.py:57 (load), in a read of a.bin (nfs4)'
    """
    place = line or one.line or "no Python code"
    text = f"in {one.call}, called at {place}" if one.call and one.line else f"at {place}"
    text += f", inside {one.inside}" if one.inside else ""
    return text + (f", in a {one.waits_in}" if one.waits_in and one.waits_in != "sleep" else "")


def _write(rank: int, lines: Sequence[LineCost], peer: int | None, least_ns: float, each: str) -> tuple[str, bool]:
    """Return the sentence, and whether a line stands out in it, by `least_ns` at least."""
    worst = lines[0]
    function = [one for one in lines if _name_function(one) == _name_function(worst) and one.excess_ns > 0]
    whole_ns = sum(one.excess_ns for one in function)
    if whole_ns < least_ns or not worst.line:
        spent = f"the most differs {describe_line(worst)}, by {format_duration(worst.excess_ns)} per {each}"
        return f"Samples of rank {rank} name no line: {spent}.", False
    is_one_line = worst.excess_ns >= LINE_HOLDS * whole_ns or len(function) == 1
    shown = [worst] if is_one_line else function
    spent_ns = sum(one.ns for one in shown)
    where = describe_line(worst) if is_one_line else f"at {_name_lines(function)}"
    if peer is None:
        return f"Rank {rank} spends {format_duration(spent_ns)} per {each} {where}.", True
    peer_ns = sum(one.peer_ns or 0.0 for one in shown)
    theirs = _describe_share(peer_ns, spent_ns)
    return f"{format_duration(spent_ns)} per {each} {where}; its peer rank {peer}: {theirs}.", True


def _name_function(one: LineCost) -> tuple[str, str]:
    file, _, rest = one.line.partition(":")
    return file, rest.partition(" ")[2]


def _name_lines(function: Sequence[LineCost]) -> str:
    """Return several lines of a function, `train.py:104-108 (augment)`, or one that calls several others."""
    file, name = _name_function(function[0])
    numbers = sorted({int(one.line.partition(":")[2].partition(" ")[0]) for one in function})
    return f"{file}:{'-'.join(map(str, numbers[:1] + numbers[1:][-1:]))} {name}"


# -- other threads ----------------------------------------------------------------------------------------------------


def _rank_threads(
    taken: SamplesTaken, peer: SamplesTaken | None, steps: set[int], peer_steps: set[int]
) -> list[LineCost]:
    """Return the lines of a rank's other threads, those first that take most more than in its peer. Without a peer they
    are of threads that a library has started: one of the script's own may look after a file in every step.
    """
    if not taken.threads:
        return []
    costs = _add_up(taken.threads, taken.stacks, steps)
    if peer is None:
        lines = {line: ns for line, ns in costs.ns.items() if costs.stacks[line].stage == BY_LIBRARY}
        return _rank_lines((), costs._replace(ns=lines), None)
    return _rank_lines((), costs, _add_up(peer.threads, peer.stacks, peer_steps))


def _describe_threads(lines: Sequence[LineCost], peer: int | None, least_ns: float, each: str) -> str:
    """Return where other threads are that the training thread may wait for; empty where none of them stands out."""
    if not lines or lines[0].excess_ns < least_ns:
        return ""
    worst = lines[0]
    theirs = "" if peer is None else f"; those of rank {peer}: {_describe_share(worst.peer_ns or 0.0, worst.ns)}"
    return f"Its other threads together: {format_duration(worst.ns)} per {each} {describe_line(worst)}{theirs}."


# -- workers of data loaders ------------------------------------------------------------------------------------------


def measure_worker(worker: SampledWorker) -> WorkerCost:
    """Return what a worker needs for a batch, and where."""
    total_ns = max(1, worker.step.duration_ns)
    stages: dict[str, float] = defaultdict(float)
    works: dict[SampledStack, int] = {}
    for place, ns in worker.step.stack_ns:
        stack = worker.stacks[place] if place < len(worker.stacks) else SampledStack()
        stages[stack.stage] += ns / total_ns
        if stack.stage != IDLE:
            works[stack] = works.get(stack, 0) + ns
    known = {name: ratio for name, ratio in stages.items() if name in STAGES}
    cost = WorkerCost(number=worker.number, count=worker.count, stage_ratios=known)
    if worker.fetches < BATCHES_MIN:
        return cost
    worst = max(works, key=lambda stack: works[stack], default=None)
    line = None if worst is None else _describe(worst, ns=works[worst] / worker.fetches, ranks=())
    return msgspec.structs.replace(cost, batch_ns=sum(works.values()) / worker.fetches, line=line)


def describe_workers(workers: Sequence[WorkerCost], peer: int | None, theirs: Sequence[WorkerCost]) -> str:
    """Return which worker of a rank needs longest for a batch, and where, or what all of them need beside those of its
    peer; empty where that is not known.
    """
    known = sorted((one for one in workers if one.batch_ns), key=lambda one: one.batch_ns or 0.0)
    if not known:
        return ""
    slowest, others_ns = known[-1], sorted(one.batch_ns or 0.0 for one in workers if one.batch_ns is not None)[:-1]
    if others_ns and (slowest.batch_ns or 0.0) >= WORKER_RATIO * median(others_ns):
        rest = _describe_share(median(others_ns), slowest.batch_ns or 0.0)
        return f"Its worker {slowest.number} of {slowest.count} needs {_describe_batch(slowest)}; the others {rest}."
    middle = known[len(known) // 2]
    who = f"Its {len(known)} workers need" if len(known) > 1 else "Its worker needs"
    peers_ns = [one.batch_ns for one in theirs if one.batch_ns is not None]
    beside = f"; those of rank {peer} {_describe_share(median(peers_ns), middle.batch_ns or 0.0)}" if peers_ns else ""
    return f"{who} {_describe_batch(middle)}{beside}."


def read_loader(seen: SampledLoader | None) -> LoaderState | None:
    """Return the queues in the mean; None where nothing was seen."""
    if seen is None or not seen.looks:
        return None
    return LoaderState(
        workers=seen.workers,
        ready=seen.ready / seen.looks,
        early=seen.early / seen.looks,
        unpinned=None if seen.unpinned is None else seen.unpinned / seen.looks,
    )


def describe_queues(loader: LoaderState | None, workers: Sequence[WorkerCost]) -> str:
    """Return where the batches are that training waits for, and which workers do nothing; empty where there is nothing
    to say.

    >>> describe_queues(LoaderState(workers=8, ready=0.1, early=5.2), [WorkerCost(number=1, count=8, batch_ns=1.0)])
    '5.2 later batches were there meanwhile.'
    """
    if loader is None:
        return ""
    texts = []
    if loader.workers and not workers:
        texts.append(f"What its {loader.workers} workers do is not known: none has answered.")
    if (loader.unpinned or 0.0) >= QUEUED_MIN:
        texts.append(f"{loader.unpinned:.1f} batches waited for its thread that pins memory.")
    if loader.early >= QUEUED_MIN:
        texts.append(f"{loader.early:.1f} later batches were there meanwhile.")
    for stage, what in ((IDLE, "idle"), (HAND_OVER, "handing over a batch")):
        count = sum(one.stage_ratios.get(stage, 0.0) >= MOSTLY for one in workers)
        if count:
            texts.append(f"{count} of {loader.workers} workers {'was' if count == 1 else 'were'} mostly {what}.")
    return " ".join(texts)


def _describe_batch(one: WorkerCost) -> str:
    line = "" if one.line is None else f", {format_duration(one.line.ns)} of it {describe_line(one.line)}"
    return f"{format_duration(one.batch_ns or 0.0)} a batch{line}"


def _describe_share(ns: float, of_ns: float) -> str:
    return "none" if ns < NONE_BELOW * of_ns else format_duration(ns)


# -- hangs ------------------------------------------------------------------------------------------------------------


class _Stood(NamedTuple):
    """Where a stalled rank was: its line, whether it comes back to several, and the cores that it used."""

    where: LineCost
    is_loop: bool
    cores: float | None


def describe_stalled(answers: Mapping[int, SamplesTaken], named: Sequence[int]) -> SampledLines | None:
    """Return where the ranks of a hang were, those at the same line together, and first those that the others wait
    for (`named`). None without samples.
    """
    stood = {rank: found for rank, taken in sorted(answers.items()) if (found := _find_place(rank, taken)) is not None}
    if not stood:
        return None
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for rank in sorted(stood, key=lambda rank: (rank not in named, rank)):
        found = stood[rank]
        groups.setdefault((found.where.line, found.where.call, found.is_loop), []).append(rank)
    texts = [_describe_group(ranks, stood) for ranks in groups.values()]
    lines = [msgspec.structs.replace(stood[ranks[0]].where, ranks=tuple(ranks)) for ranks in groups.values()]
    sentence = "; ".join(texts)
    return SampledLines(
        sentence=f"{sentence[0].upper()}{sentence[1:]}.",
        rank=next(iter(next(iter(groups.values())))),
        is_named=True,
        lines=tuple(lines[:LINES_MAX]),
    )


def _find_place(rank: int, taken: SamplesTaken) -> _Stood | None:
    known = {one.step for one in taken.steps}
    if known != {NO_STEP} or not taken.span_ns:
        return None
    costs = _add_up(taken.steps, taken.stacks, known)
    lines = sorted(_rank_lines((rank,), costs, None), key=lambda one: -one.ns)
    visited = [one for one in lines if one.ns >= VISITED_SHARE_MIN * costs.step_ns]
    cores = None if taken.cpu_ns is None else taken.cpu_ns / taken.span_ns
    is_loop = len({one.line for one in visited}) > 1 or (cores is not None and cores >= BUSY_CPU_RATIO)
    where = lines[0]
    if len({one.line for one in visited}) > 1 and len({_name_function(one) for one in visited}) == 1:
        where = msgspec.structs.replace(where, line=_name_lines(visited), call="", waits_in="")
    return _Stood(where, is_loop, cores)


def _describe_group(ranks: Sequence[int], stood: Mapping[int, _Stood]) -> str:
    found = stood[ranks[0]]
    one = len(ranks) == 1
    who = f"rank{'' if one else 's'} {', '.join(map(str, sorted(ranks)))}"
    if not found.is_loop:
        return f"{who} {'waits' if one else 'wait'} {describe_line(found.where)}"
    cores = "" if found.cores is None else f", with {found.cores:.2f} of a core"
    return f"{who} {'runs' if one else 'run'} on {describe_line(found.where)}{cores}"
