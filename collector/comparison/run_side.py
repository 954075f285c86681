"""Read from the store what is compared of a run, or of some steps of it."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.comparison.block_bootstrap import Floats
from rankscope.collector.detect.run_rules.earlier_runs import RUNS_MIN, choose_earlier, measure_excess
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.store import read_store
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.speed_history import find_work
from rankscope.collector.steps.collective_totals import Kind, KindMeans, KindTime, average_by_kind, sum_by_kind
from rankscope.collector.steps.equal_work import Work
from rankscope.collector.steps.run_start import WARMUP_STEPS, RunStart
from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.earlier_runs import find_earlier_runs
from rankscope.collector.storage.rank_intervals import SUMS
from rankscope.collector.storage.run_reader import StoredHistory, opening_run
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import SettingError, UnavailableError

STEPS_MIN: Final = 100
"""Fewer steps are not compared: their mean is known to a few percent only where steps vary by a tenth."""
STEPS_READ_MAX: Final = 50_000
"""The last steps that are compared, half a day of steps of a second; more would make an interval hardly shorter."""

_RANGE: Final = re.compile(r"(\d{0,15}):(\d{0,15})")
_STEPS: Final = "@steps"


class Selection(NamedTuple):
    """A run by its name or id, and which steps of it: from `first_step` up to, not including, `end_step` (None: to the
    last one) of its last attempt; `is_range` False: all of it.
    """

    run: str
    is_range: bool = False
    first_step: int = 0
    end_step: int | None = None


class StartSpread(NamedTuple):
    """By how much so many earlier runs of the same work differed in their first steps: the standard deviation of the
    logarithms, 0.01 or more.
    """

    runs: int
    deviation: float


class RunSide(NamedTuple):
    """One side of a comparison. `step_ns` are the durations of its steps, medians over the ranks, in ns, shape (n,),
    and `phases_ns` their phases, the same shape; `sums` the intervals of the history, shape (intervals, len(SUMS)).

    `left_out` says which steps of the selection are not compared, empty where all are. `work` is that of a step of the
    lowest rank, by its last report, as is the peak of its device. `collectives` are those of the last attempt by group
    and operation, and `collective_times` all of its calls, matched or not; none of a range of steps. `start_spread` is
    that of the runs before it, None with fewer than five.
    """

    selection: Selection
    run_id: str
    world_size: int
    attempts: int
    first_step: int
    last_step: int
    step_ns: Floats
    phases_ns: Mapping[str, Floats]
    sums: Floats
    goodput_ratio: float | None
    incidents: tuple[Incident, ...]
    nodes: frozenset[str]
    versions: Mapping[str, tuple[str, ...]]
    left_out: str = ""
    work: Work = Work(0)
    peak_flops_per_s: float | None = None
    collectives: Mapping[Kind, KindMeans] = {}
    collective_times: Mapping[Kind, KindTime] = {}
    start_spread: StartSpread | None = None


def parse_selections(words: Sequence[str]) -> list[Selection]:
    """Return the runs that the words of a command line name. A word that ends in `@steps` is followed by one with a
    range. Raises SettingError.

    >>> [(one.run, one.first_step, one.end_step) for one in parse_selections(["a@steps", "0:5000", "a@steps", "5000:"])]
    [('a', 0, 5000), ('a', 5000, None)]
    >>> parse_selections(["a", "my run"])[1]
    Selection(run='my run', is_range=False, first_step=0, end_step=None)
    """
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        found.append(parse_selection(f"{word} {rest.pop(0)}" if word.endswith(_STEPS) and rest else word))
    return found


def write_selection(selection: Selection) -> str:
    """Return the text that `parse_selection` reads as this.

    >>> write_selection(Selection("bert")), write_selection(Selection("bert", True, 5))
    ('bert', 'bert@steps 5:')
    """
    if not selection.is_range:
        return selection.run
    end = "" if selection.end_step is None else selection.end_step
    return f"{selection.run}{_STEPS} {selection.first_step}:{end}"


def parse_selection(text: str) -> Selection:
    """Return the run that a text names: what is before the last `@steps` with a range, or all of it. Raises
    SettingError.

    >>> parse_selection("my run@steps 5:")
    Selection(run='my run', is_range=True, first_step=5, end_step=None)
    """
    run, steps, given = f"{text} ".rpartition(f"{_STEPS} ")
    if not steps:
        return Selection(text)
    parsed = _RANGE.fullmatch(given.strip())
    first, end = (int(parsed[1] or 0), int(parsed[2]) if parsed[2] else None) if parsed else (0, 0)
    if not parsed or not run or (end is not None and end <= first):
        raise SettingError(
            f"{run}{_STEPS} is followed by {given.strip()[:80]!r}, which is no range of steps; write RUN@steps "
            "FIRST:END, as in `bert@steps 0:5000`, or `bert@steps 5000:` for all from 5000 on. END is not included."
        )
    return Selection(run, is_range=True, first_step=first, end_step=end)


def read_side(address: StoreAddress, selection: Selection) -> RunSide:
    """Return what the store has of a selection. Raises UnavailableError for no such run, or fewer than STEPS_MIN steps
    of it in the history.
    """
    with opening_run(address, selection.run) as history:
        run_id = history.kept.run.run
        incidents = [one for one in read_store(address).incidents if one.run_id == run_id]
        side = build_side(history, selection, incidents)
        return side._replace(start_spread=find_start_spread(address, run_id, history.kept.story.start))


def find_start_spread(address: StoreAddress, run_id: str, start: RunStart | None) -> StartSpread | None:
    """Return by how much the runs of the same work before this one differed; None where too few are known."""
    earlier = [] if start is None else choose_earlier(find_earlier_runs(address, run_id, start))
    if start is None or len(earlier) < RUNS_MIN:
        return None
    return StartSpread(len(earlier), measure_excess(start, earlier).deviation)


def build_side(history: StoredHistory, selection: Selection, incidents: Sequence[Incident]) -> RunSide:
    """Return a selection of an open history. Raises UnavailableError for fewer than STEPS_MIN steps."""
    kept = history.kept
    read = _read_steps(history, selection)
    first_step = 0 if selection.is_range else WARMUP_STEPS
    steps = [one for one in read if one.step >= first_step and one.median_ns > 0]
    if len(steps) < STEPS_MIN:
        raise UnavailableError(
            f"{describe_selection(selection)} has {len(steps)} steps in the history that can be compared; at least "
            f"{STEPS_MIN} are needed. A step is in the history once all ranks have reported it"
            + ("." if selection.is_range else f", and the first {WARMUP_STEPS} of each attempt do not count.")
        )
    counts = None if selection.is_range else history.read_collectives()
    begin_s, end_s = (steps[0].wall_s, steps[-1].wall_s) if _is_part(selection, read) else (0.0, np.inf)
    return RunSide(
        selection=selection,
        run_id=kept.run.run,
        world_size=kept.run.world_size,
        attempts=kept.run.attempt + 1,
        first_step=steps[0].step,
        last_step=steps[-1].step,
        step_ns=np.array([one.median_ns for one in steps], dtype=np.float64),
        phases_ns=_read_phases(steps),
        sums=_read_sums(history, begin_s, end_s),
        goodput_ratio=None if selection.is_range else kept.run.goodput.goodput_ratio,
        incidents=tuple(one for one in incidents if begin_s <= one.opened_wall_s <= end_s),
        nodes=frozenset(rank.hello.identity.node for rank in kept.ranks),
        versions=_read_versions(kept.ranks),
        left_out=_describe_left_out(selection, read),
        work=find_work(kept.run.world_size, kept.ranks[0]) if kept.ranks else Work(kept.run.world_size),
        peak_flops_per_s=kept.ranks[0].flops.peak_flops_per_s if kept.ranks else None,
        collectives={} if counts is None else average_by_kind(counts),
        collective_times={} if counts is None else sum_by_kind(counts),
    )


def describe_selection(selection: Selection) -> str:
    """Return a selection in words.

    >>> describe_selection(Selection("bert")), describe_selection(Selection("bert", is_range=True, first_step=5))
    ("'bert'", "'bert' from step 5 on")
    >>> describe_selection(Selection("bert", is_range=True, end_step=50))
    "'bert' in steps 0 to 49"
    """
    if not selection.is_range:
        return repr(selection.run)
    if selection.end_step is None:
        return f"{selection.run!r} from step {selection.first_step} on"
    return f"{selection.run!r} in steps {selection.first_step} to {selection.end_step - 1}"


def _read_steps(history: StoredHistory, selection: Selection) -> list[StepAggregate]:
    if not selection.is_range:
        return history.read_last_steps(STEPS_READ_MAX)
    return history.read_last_steps(
        STEPS_READ_MAX,
        attempt=history.find_last_attempt(),
        first_step=selection.first_step,
        end_step=selection.end_step,
    )


def _is_part(selection: Selection, read: Sequence[StepAggregate]) -> bool:
    """Return whether the steps that were read are not the whole run, so that its intervals are too many."""
    return selection.is_range or len(read) == STEPS_READ_MAX


def _describe_left_out(selection: Selection, read: Sequence[StepAggregate]) -> str:
    parts = [] if selection.is_range else [f"the first {WARMUP_STEPS} steps of each attempt"]
    if len(read) == STEPS_READ_MAX:
        parts.append(f"all steps before the last {STEPS_READ_MAX:,}")
    return " and ".join(parts)


def _read_phases(steps: Sequence[StepAggregate]) -> dict[str, Floats]:
    """Return the phases of all steps, in the order of their first step; 0 where a step had no such phase."""
    names = list(dict.fromkeys(name for one in steps for name in one.phases_ns))
    return {name: np.array([one.phases_ns.get(name, 0) for one in steps], dtype=np.float64) for name in names}


def _read_sums(history: StoredHistory, begin_s: float, end_s: float) -> Floats:
    rows = [[one.sums[name] for name in SUMS] for one in history.read_sums(begin_s, end_s)]
    return np.array(rows, dtype=np.float64).reshape(-1, len(SUMS))


def _read_versions(ranks: Sequence[SavedRank]) -> dict[str, tuple[str, ...]]:
    """Return what is known of the software and the hardware, by name: the different values on the ranks, sorted."""
    hellos = [rank.hello for rank in ranks]
    found = {
        "torch": {hello.torch_version for hello in hellos},
        "python": {hello.python_version for hello in hellos},
        "agent": {hello.agent_version for hello in hellos},
        "GPU": {device.model for rank in ranks for device in rank.devices},
    }
    return {name: tuple(sorted(values - {""})) for name, values in found.items()}
