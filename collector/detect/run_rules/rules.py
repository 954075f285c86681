"""Judge a whole run: what slows all of its ranks, by which numbers, and what to do about it.

The rules name no rank. Each has a threshold to open and, by CLOSE_RATIO, a laxer one to stay open; each may abstain
when its signals are not known. One situation gives one finding: where a rule has found why the devices are idle, the
rule about idle devices is silent, and so is one that repeats an open finding about slow ranks, a slow stage, a slower
run or a slow link.

| rule | on most ranks |
|---|---|
| `data_bound` | the data phase takes a tenth of the step (on a GPU: and the device is idle as long) |
| `host_bound` | the GPU is idle for 30 % of the time beyond that, and moves little data that nothing hides |
| `low_gpu_utilization` | the GPU is idle for 30 % of the time, and neither of the two explains it |
| `communication_bound` | exposed communication for 15 % of the time; waits do not count |
| `copy_bound` | copies from the host, while no kernel runs, for 5 % of the time |
| `serialized_communication` | little communication overlaps, and overlap could save a tenth of the time |
| `cpu_pressure` | the training thread waits for a CPU core a tenth of the time (on a GPU: and it is idle as long) |
| `garbage_collection` | steps are longer than usual for 5 % of the time, and garbage collectors pause as long |
| `memory_pressure` | repeatedly the allocator runs out of memory, or allocates from the driver and frees to it |

In a run without GPUs only `data_bound`, `cpu_pressure` and `garbage_collection` are judged. Devices that are idle,
beyond the data phase, for more than twice as long as their processes compute do not wait for busy hosts but for what
is not seen: that is `low_gpu_utilization`. A host that waits for its device instead of launching ahead
(`blocking_sync` in traces) is no finding of its own: where that makes half of the idle time, `host_bound` says so and
names the source line.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.detect.finding import RUN_SLOWDOWN, STRAGGLER, Abstain, Finding
from rankscope.collector.detect.run_rules.signals import FIRST_STEPS, RunSignals, read_signals
from rankscope.collector.detect.run_rules.thresholds import (
    CRITICAL_RATIO,
    DATA_RATIO_MIN,
    EXPOSED_RATIO_MIN,
    HIDEABLE_RATIO_MIN,
    HOST_COPY_RATIO_MIN,
    IDLE_RATIO_MIN,
    OVERLAP_RATIO_MAX,
    PAUSE_RATIO_MIN,
    QUEUE_RATIO_MIN,
    percent,
)
from rankscope.collector.detect.statistics.begin_range import find_rise
from rankscope.collector.detect.stragglers.host_times import describe_limit
from rankscope.collector.detect.stragglers.intermittent import CLASS_RATIO, find_half_of_time
from rankscope.collector.detect.suggestions import PINNED, SYNCHRONIZES, UNSEEN, suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.measure.units import format_bytes, format_duration

CLOSE_RATIO: Final = 0.8
"""An open finding passes when its number falls below this share of its threshold: shares of windows vary by less than
a fifth in a steady run."""
EXPLAINS: Final = 0.5
"""Share of the idle time that blocking calls must explain to be named."""
LONG_RATIO: Final = 0.25
"""Time beyond the median, over it, from which a step is taken for one with a pause."""
PAUSES_MIN, PAUSES_SURE = 3, 8
GAPS_MAX: Final = 5.0
"""Usual gaps between long steps after which there were no pauses."""
INTERVALS_RATIO_MIN: Final = 0.5
"""Share of the intervals between allocator samples. A cache emptied once, at an unusual batch, is no pressure."""


class Judged(NamedTuple):
    """The result of a rule. `ratio` is the share of the time it is about, `what` and `why` are those of its finding,
    `evidence` the numbers by name. `machine` is the one it is about; None: the run. `variant` chooses the suggestion
    where a rule has several.
    """

    ratio: float
    what: str
    why: str
    evidence: Mapping[str, float]
    machine: str | None = None
    variant: str = ""


NO_GPUS: Final = "the run has no GPUs"
NO_WINDOWS: Final = "no GPU has enough profiler windows yet"
NO_TRANSFERS: Final = "how long the data movement takes is not known"
EARLY_EASE: Final = 2.0
"""Times the threshold from which waits for loaders are told of a run that is too young for all else: workers that start
make the first batches late."""
NO_COPIES: Final = "no GPU has enough profiler windows that tell of copies from the host yet"

Verdict = Judged | Abstain | None
"""None: judged, and nothing found."""


def _idle_during(wait: float, ratio_min: float, signals: RunSignals, unknown: str) -> float | Abstain | None:
    """Return for which share of the time the hosts wait, on GPUs at most that for which these are idle; None below
    `ratio_min`; for the reason `unknown` where it is not known.
    """
    if wait < ratio_min:
        return None
    if signals.has_gpus and not signals.has_windows:
        return Abstain(signals.absent or unknown)
    ratio = wait if signals.idle is None else min(wait, signals.idle)
    return None if ratio < ratio_min else ratio


def _abstain(signals: RunSignals, reason: str) -> Abstain:
    """Return why what only GPUs show is not known."""
    return Abstain(signals.absent or (reason if signals.has_gpus else NO_GPUS))


def judge_data(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether the steps wait for the data loaders."""
    if signals.data is None:
        return Abstain("the data phase is not known")
    ratio = _idle_during(
        signals.data, ease * DATA_RATIO_MIN, signals, "the idle time of the GPUs in the data phase is not known"
    )
    if ratio is None or isinstance(ratio, Abstain):
        return ratio
    return Judged(
        ratio,
        f"ranks waiting for their data loaders {percent(ratio)} of the time,",
        f"{format_duration(ratio * signals.step_ns)} of each step",
        {"data_ratio": signals.data, "data_ratio_min": DATA_RATIO_MIN},
    )


def judge_host(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether the GPUs wait for their hosts, and not for data or for each other."""
    if signals.idle is None:
        return _abstain(signals, NO_WINDOWS)
    data, moving = min(signals.data or 0.0, signals.idle), signals.moving or 0.0
    if signals.idle - data < ease * IDLE_RATIO_MIN or moving >= EXPOSED_RATIO_MIN / ease:
        return None
    if _waits_unseen(signals) or isinstance(judge_core_wait(signals), Judged):
        return None
    evidence = {
        "host_idle_ratio": signals.idle - data,
        "host_idle_ratio_min": IDLE_RATIO_MIN,
        "idle_ratio": signals.idle,
    }
    what = f"GPUs idle {percent(signals.idle)} of the time, waiting for their hosts,"
    why = f"waiting for data {percent(data)} of the time"
    if signals.synchronizing is None or signals.synchronizing < EXPLAINS * (signals.idle - data):
        return Judged(signals.idle - data, what, why, evidence)
    waits = (
        f"up to {percent(signals.synchronizing)} of the time at the end of a call that waits for the GPU (as .item())"
    )
    where = f", {signals.synchronizes_in}" if signals.synchronizes_in else ""
    return Judged(
        signals.idle - data,
        what,
        f"{why}, {waits}{where}",
        {**evidence, "synchronizing_ratio": signals.synchronizing},
        variant=SYNCHRONIZES,
    )


def _waits_unseen(signals: RunSignals) -> bool:
    """Return whether the devices are idle, beyond the data phase, for more than twice as long as their processes
    compute at all: then no host is busy for at least half of that time.
    """
    if signals.idle is None or signals.computing is None:
        return False
    return signals.computing < EXPLAINS * (signals.idle - min(signals.data or 0.0, signals.idle))


def judge_core_wait(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether the training threads wait for CPU cores, all alike."""
    if signals.queueing is None:
        return Abstain("how long the training threads wait for a CPU core is not known")
    unknown = "the idle time of the GPUs, while hosts wait for a CPU core, is not known"
    ratio = _idle_during(signals.queueing, ease * QUEUE_RATIO_MIN, signals, unknown)
    if ratio is None or isinstance(ratio, Abstain):
        return ratio
    return Judged(
        ratio,
        f"training threads of most ranks waiting for a CPU core {percent(ratio)} of the time or more"
        f"{describe_limit(signals.throttled, 'their')},",
        f"{format_duration(ratio * signals.step_ns)} of each step",
        {"core_wait_ratio": signals.queueing, "core_wait_ratio_min": QUEUE_RATIO_MIN},
        signals.machine,
    )


def judge_utilization(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether the GPUs are idle much of the time, and no other rule explains it."""
    if signals.idle is None:
        return _abstain(signals, NO_WINDOWS)
    explained = any(isinstance(judge(signals), Judged) for judge in (judge_data, judge_core_wait, judge_host))
    if signals.idle < ease * IDLE_RATIO_MIN or explained:
        return None
    evidence = {"busy_ratio": 1 - signals.idle, "busy_ratio_max": 1 - IDLE_RATIO_MIN}
    if signals.computing is not None and _waits_unseen(signals):
        return Judged(
            signals.idle,
            f"GPUs idle {percent(signals.idle)} of the time",
            f"training threads waiting for something not measured: on most ranks the CPU is used at most "
            f"{percent(signals.computing)} of the time",
            {**evidence, "computing_ratio": signals.computing},
            variant=UNSEEN,
        )
    return Judged(
        signals.idle,
        f"GPUs busy only {percent(1 - signals.idle)} of the time",
        "explained neither by data loading nor by their hosts alone",
        evidence,
    )


def judge_communication(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether exposed communication takes much of the time."""
    if signals.moving is None:
        return _abstain(signals, NO_TRANSFERS)
    if signals.moving < ease * EXPOSED_RATIO_MIN:
        return None
    return Judged(
        signals.moving,
        f"{percent(signals.moving)} of the time in communication",
        "not overlapped with compute; waits for other ranks not counted",
        {"exposed_transfer_ratio": signals.moving, "exposed_transfer_ratio_min": EXPOSED_RATIO_MIN},
    )


def judge_serial_communication(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether communication and compute alternate although they could overlap."""
    if signals.hideable is None or signals.overlap is None:
        return _abstain(signals, NO_TRANSFERS)
    if signals.overlap >= OVERLAP_RATIO_MAX / ease or signals.hideable < ease * HIDEABLE_RATIO_MIN:
        return None
    return Judged(
        signals.hideable,
        f"only {percent(signals.overlap)} of communication overlapped with compute",
        f"up to {percent(signals.hideable)} of the time to save by full overlap",
        {
            "hideable_ratio": signals.hideable,
            "hideable_ratio_min": HIDEABLE_RATIO_MIN,
            "overlap_ratio": signals.overlap,
            "overlap_ratio_max": OVERLAP_RATIO_MAX,
        },
    )


def judge_host_copies(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether GPUs copy from their hosts, and compute nothing meanwhile, for much of the time."""
    if signals.copying is None:
        return _abstain(signals, NO_COPIES)
    if signals.copying < ease * HOST_COPY_RATIO_MIN:
        return None
    evidence = {"host_copy_ratio": signals.copying, "host_copy_ratio_min": HOST_COPY_RATIO_MIN}
    size = "" if signals.copied_bytes is None else f"{format_bytes(signals.copied_bytes)} per step, "
    memory, is_pinned = "pinned or pageable not known", False
    if signals.pageable is not None:
        of_it = min(1.0, signals.pageable / signals.copying)
        evidence["pageable_copy_ratio"] = signals.pageable
        is_pinned = of_it < EXPLAINS
        memory = f"{percent(of_it)} of that time from pageable memory" if of_it else "all from pinned memory"
    return Judged(
        signals.copying,
        f"GPUs copying from their hosts {percent(signals.copying)} of the time, computing nothing meanwhile,",
        f"{size}{memory}",
        evidence,
        variant=PINNED if is_pinned else "",
    )


def judge_garbage(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether the garbage collectors of many ranks, at steps of their own, make all wait again and again. Pauses
    at one step count once: no more is lost than what steps are longer than usual.
    """
    if signals.pausing is None:
        return Abstain("how long Python's garbage collectors pause is not known")
    ratio = min(signals.pausing, signals.beyond)
    if ratio < ease * PAUSE_RATIO_MIN:
        return None
    return Judged(
        ratio,
        f"ranks stopped by Python's garbage collector up to {percent(ratio)} of the time",
        "all ranks waiting for each pause",
        {"pause_ratio": signals.pausing, "beyond_usual_ratio": signals.beyond, "pause_ratio_min": PAUSE_RATIO_MIN},
    )


def judge_memory(signals: RunSignals, ease: float = 1.0) -> Verdict:
    """Judge whether torch's allocators have too little memory, or keep too little of it."""
    if signals.retrying is None or signals.churning is None:
        return Abstain("no allocator was sampled often enough" if signals.has_gpus else NO_GPUS)
    least = ease * INTERVALS_RATIO_MIN
    if signals.retrying >= least:
        what = "GPU memory full again and again"
        why = f"cache emptied by torch {signals.retries} times in the sampled intervals, stopping the GPU each time"
    elif signals.churning >= least:
        what = "GPU memory allocated from the driver and freed again in training"
        why = "the GPU stopped each time"
    else:
        return None
    return Judged(
        0.0,
        what,
        why,
        {
            "retrying_intervals_ratio": signals.retrying,
            "churning_intervals_ratio": signals.churning,
            "intervals_ratio_min": INTERVALS_RATIO_MIN,
            "retries": float(signals.retries),
        },
    )


def _price_pauses(finding: Finding, view: RunView, ratio: float, known: Finding | None) -> Candidate:
    """Return a finding about garbage collection with its begin and its cost: each step lost, of what it lasted beyond
    the median step, the part that makes it `ratio` of the time.
    """
    steps, longest_ns = view.series.steps, view.longest_ns
    is_reported = ~np.isnan(view.mean_ns)  # by all ranks: the one that pauses reports its step last
    if not is_reported.any():
        return Candidate(finding)
    median_ns = float(np.median(longest_ns[is_reported]))
    beyond_ns = np.maximum(longest_ns - median_ns, 0.0)
    took_ns = float(view.mean_ns[is_reported].sum())
    lost_ns = beyond_ns * min(1.0, ratio * took_ns / max(1.0, float(beyond_ns[is_reported].sum())))
    lost_ns[~is_reported] = np.nan
    found = msgspec.structs.replace(finding, run_slowdown_ratio=1.0 / (1.0 - ratio))
    if known is not None:
        return Candidate(found, lost_ns)
    long_ns = CLASS_RATIO * find_half_of_time(beyond_ns[is_reported].tolist())
    long_steps = steps[is_reported & (beyond_ns > max(long_ns, LONG_RATIO * median_ns))]
    if len(long_steps) < PAUSES_MIN:
        return Candidate(found, lost_ns)
    gaps = np.diff(long_steps)
    breaks = np.flatnonzero(gaps > GAPS_MAX * np.mean(gaps))
    first = 0 if not len(breaks) else int(breaks[-1]) + 1  # what was long before is not a pause like these
    if len(long_steps) - first < PAUSES_MIN:
        return Candidate(found, lost_ns)
    since = int(long_steps[first])
    few = 2 if len(long_steps) - first < PAUSES_SURE else 1  # the longest gap may not have been seen yet
    earliest = max(int(steps[0]), since - few * int(gaps[first:].max()))
    found = msgspec.structs.replace(found, since_step=since, since_step_min=earliest, since_step_max=since)
    return Candidate(found, lost_ns)


def _date_loading(finding: Finding, view: RunView, _ratio: float, known: Finding | None) -> Candidate:
    """Return a finding about loading data with its begin, by the share of it in each step, in the mean of the ranks."""
    data_ns, step_ns = view.series.phases_ns.get("data"), view.series.step_ns
    if known is not None or data_ns is None:
        return Candidate(finding)
    rows = np.flatnonzero(view.series.steps >= FIRST_STEPS)
    shares = (data_ns[rows] / np.maximum(step_ns[rows], 1.0)).mean(axis=1)
    is_known = ~np.isnan(shares)
    if np.count_nonzero(is_known) < 2 * view.steps_min:
        return Candidate(finding)
    since, earliest, latest = find_rise(
        view.series.steps[rows][is_known], shares[is_known], DATA_RATIO_MIN, view.steps_min
    )
    return Candidate(msgspec.structs.replace(finding, since_step=since, since_step_min=earliest, since_step_max=latest))


class Rule(NamedTuple):
    """A rule for one kind of finding. It is silent beside findings with a cause in `restates` (None: beside every
    straggler), if there are `kinds` only beside those of these kinds, and beside those of a kind in `after`, which
    explain it. `price` adds its cost, and the begin where steps show it; without, it states none.
    """

    judge: Callable[[RunSignals, float], Verdict]
    restates: frozenset[str] | None
    after: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    price: Callable[[Finding, RunView, float, Finding | None], Candidate] | None = None


ANY_CAUSE: Final = None
GARBAGE: Final = "garbage_collection"
RULES: Final[Mapping[str, Rule]] = {
    "data_bound": Rule(judge_data, frozenset({"data_loading"}), price=_date_loading),
    "host_bound": Rule(
        judge_host,
        # Of a slower run the share of the data is known later than the idle time of its GPUs.
        frozenset(
            {"host_cpu", "garbage_collection", "host_device_sync", "cpu_pressure", "unseen_wait", "data_loading"}
        ),
    ),
    "low_gpu_utilization": Rule(judge_utilization, ANY_CAUSE, frozenset({"data_bound", "host_bound"})),
    "cpu_pressure": Rule(judge_core_wait, frozenset({"cpu_pressure"}), kinds=frozenset({RUN_SLOWDOWN})),
    "communication_bound": Rule(judge_communication, ANY_CAUSE, frozenset({"slow_link"})),
    "copy_bound": Rule(judge_host_copies, frozenset({"pcie_downgrade", "slow_copies"})),
    "serialized_communication": Rule(judge_serial_communication, ANY_CAUSE, frozenset({"slow_link"})),
    "memory_pressure": Rule(judge_memory, frozenset({"memory_pressure"})),
    GARBAGE: Rule(judge_garbage, frozenset({GARBAGE}), price=_price_pauses),
}
"""The rules by kind, which is the cause too, in the order in which they run."""
OF_WINDOWS_ONLY: Final = frozenset(
    {"host_bound", "low_gpu_utilization", "communication_bound", "copy_bound", "serialized_communication"}
)
"""What only windows of GPUs show: once these have ended nothing can be said of the present."""


class RunRules:
    """The detector of what slows a whole run. `steps` is how many of the last steps it judges."""

    kinds = frozenset(RULES)

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate | Abstain] | Abstain:
        """Return what holds now, unless known findings explain it, and which rules cannot judge."""
        signals = read_signals(view, self._steps)
        if isinstance(signals, Abstain):
            return signals
        known = {finding.kind: finding for finding in explained}
        found: list[Candidate | Abstain] = []
        for kind, rule in RULES.items():
            judged = _judge(kind, rule, signals)
            if isinstance(judged, Abstain):
                found.append(Abstain(judged.reason, kind))
            elif judged is not None and (kind in known or not _is_explained(rule, explained)):
                finding = _describe(kind, judged, signals, known.get(kind))
                priced = rule.price(finding, view, judged.ratio, known.get(kind)) if rule.price else Candidate(finding)
                found.append(priced)
        return found

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool | Abstain:
        """Return whether it no longer holds by the laxer threshold either, or why it can no longer be judged."""
        signals = read_signals(view, self._steps)
        if isinstance(signals, Abstain):
            return False
        judged = RULES[finding.kind].judge(signals, CLOSE_RATIO)
        if isinstance(judged, Abstain) and signals.absent is not None and finding.kind in OF_WINDOWS_ONLY:
            return Abstain(signals.absent)
        return judged is None


def _judge(kind: str, rule: Rule, signals: RunSignals) -> Verdict:
    """Return what a rule says. Of a young run only that it waits for loaders is known: not that it does not."""
    if not signals.too_few:
        return rule.judge(signals, 1.0)
    judged = rule.judge(signals, EARLY_EASE) if kind == "data_bound" else None
    return judged or Abstain(signals.too_few)


def _is_explained(rule: Rule, explained: Sequence[Finding]) -> bool:
    return any(
        finding.kind in rule.after
        or (finding.kind == STRAGGLER if rule.restates is ANY_CAUSE else finding.cause in rule.restates)
        for finding in explained
        if not rule.kinds or finding.kind in rule.kinds
    )


def _describe(kind: str, judged: Judged, signals: RunSignals, known: Finding | None) -> Finding:
    return Finding(
        kind=kind,
        nodes=() if judged.machine is None else (judged.machine,),
        # The windows move on with the run: the begin of an open finding is kept.
        since_step=signals.since_step if known is None else known.since_step,
        since_step_min=None if known is None else known.since_step_min,
        since_step_max=signals.older_than if known is None else known.since_step_max,
        cause=kind,
        what=judged.what,
        why=judged.why,
        suggestion=suggest(kind, kind, judged.variant),
        severity="warning" if judged.ratio >= CRITICAL_RATIO or kind == "memory_pressure" else "info",
        evidence=judged.evidence,
    )
