"""Rules over a whole job: what holds all of its ranks up, by which numbers, and what to do about it.

They are about the job, and blame no rank. Each has a threshold to open and, by CLOSE_RATIO, a laxer one to stay open;
each may abstain when what it needs is not known. One situation gives one finding: where a rule has found why the
devices are idle, the rule that only says so is silent, and so is one that would say again what an open finding about
slow ranks, a slow stage, a slower run or a slow link explains.

| rule | what most ranks show |
|---|---|
| `data_bound` | the data phase takes a tenth of the step (on a GPU: and the device is idle as long) |
| `host_bound` | the GPU is idle for 30 % of the time beyond that, and moves little data that nothing hides |
| `low_gpu_utilisation` | the GPU is idle for 30 % of the time, and neither of the two says why |
| `communication_bound` | data is moved, with nothing computed meanwhile, for 15 % of the time; waiting does not count |
| `serialised_communication` | little communication is hidden, and computing could hide a tenth of the time of it |
| `memory_pressure` | time and again the allocator runs out of memory, or takes it from the driver and gives it back |

On a job without GPUs only `data_bound` is judged. A host that waits for its device when it should launch ahead
(`blocking_sync` in traces) is not told apart here: what a rank reports of its windows does not have the calls that
wait.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import STRAGGLER, Abstain, Finding
from rankscope.collector.detect.past import WHEN, put_in_past
from rankscope.collector.detect.run_rules.signals import RunSignals, read_signals
from rankscope.collector.detect.run_rules.thresholds import (
    COMMUNICATE_LESS,
    CRITICAL_RATIO,
    DATA_RATIO_MIN,
    EXPOSED_RATIO_MIN,
    FEED_FASTER,
    FREE_THE_ALLOCATOR,
    FREE_THE_HOST,
    HIDEABLE_RATIO_MIN,
    IDLE_RATIO_MIN,
    OVERLAP,
    OVERLAP_RATIO_MAX,
    percent,
)
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.measure.units import format_duration

CLOSE_RATIO: Final = 0.8
"""An open finding passes when its number is below so much of what opens it: a fifth is more than shares of windows
differ by in a job that goes on as before (gloo-2.13, clean: 2 to 7 %)."""
INTERVALS_RATIO_MIN: Final = 0.5
"""Of the intervals between samples of the allocator. A cache that is emptied once, at an unusual batch, is no pressure;
in every second interval it is what the training does."""


class Judged(NamedTuple):
    """What a rule has found. `ratio` is the share of the time it is about, `evidence` the numbers by their names."""

    ratio: float
    sentence: str
    suggestion: str
    evidence: Mapping[str, float]


Verdict = Judged | Abstain | None
"""None: judged, and nothing found."""


def judge_data(signs: RunSignals, ease: float = 1.0) -> Verdict:
    """Whether the steps wait for the data loaders."""
    if signs.data is None or not signs.has_windows:
        return Abstain("the data phase or the idle time of the GPUs in it is not known")
    ratio = signs.data if signs.idle is None else min(signs.data, signs.idle)
    if ratio < ease * DATA_RATIO_MIN:
        return None
    return Judged(
        ratio,
        f"The ranks wait for their data loaders {percent(ratio)} of the time, "
        f"{format_duration(ratio * signs.step_ns)} in a step.",
        FEED_FASTER,
        {"data_ratio": signs.data, "data_ratio_min": DATA_RATIO_MIN},
    )


def judge_host(signs: RunSignals, ease: float = 1.0) -> Verdict:
    """Whether the GPUs wait for their hosts, and not for data or for each other."""
    if signs.idle is None:
        return Abstain("no GPU has enough profiler windows yet")
    data, moving = min(signs.data or 0.0, signs.idle), signs.moving or 0.0
    if signs.idle - data < ease * IDLE_RATIO_MIN or moving >= EXPOSED_RATIO_MIN / ease:
        return None
    return Judged(
        signs.idle - data,
        f"The GPUs are idle {percent(signs.idle)} of the time, waiting for their hosts; waiting for data is "
        f"{percent(data)} of the time.",
        FREE_THE_HOST,
        {"host_idle_ratio": signs.idle - data, "host_idle_ratio_min": IDLE_RATIO_MIN, "idle_ratio": signs.idle},
    )


def judge_utilisation(signs: RunSignals, ease: float = 1.0) -> Verdict:
    """Whether the GPUs are idle much of the time, and no other rule says why."""
    if signs.idle is None:
        return Abstain("no GPU has enough profiler windows yet")
    told = any(isinstance(judge(signs), Judged) for judge in (judge_data, judge_host))
    if signs.idle < ease * IDLE_RATIO_MIN or told:
        return None
    return Judged(
        signs.idle,
        f"The GPUs are busy only {percent(1 - signs.idle)} of the time, and neither data loading nor their hosts alone "
        "explain it.",
        f"Look at one rank's step in a trace (rankscope analyze): what its host does while its GPU is idle. "
        f"{FREE_THE_HOST}",
        {"busy_ratio": 1 - signs.idle, "busy_ratio_max": 1 - IDLE_RATIO_MIN},
    )


def judge_communication(signs: RunSignals, ease: float = 1.0) -> Verdict:
    """Whether the steps spend their time moving data, with nothing computed meanwhile."""
    if signs.moving is None:
        return Abstain("how long the data movement takes is not known")
    if signs.moving < ease * EXPOSED_RATIO_MIN:
        return None
    return Judged(
        signs.moving,
        f"{percent(signs.moving)} of the time is communication that does not overlap with compute, waits for other "
        "ranks not counted.",
        COMMUNICATE_LESS,
        {"exposed_transfer_ratio": signs.moving, "exposed_transfer_ratio_min": EXPOSED_RATIO_MIN},
    )


def judge_serial_communication(signs: RunSignals, ease: float = 1.0) -> Verdict:
    """Whether communicating and computing take turns although they could run together."""
    if signs.hideable is None or signs.overlap is None:
        return Abstain("how long the data movement takes is not known")
    if signs.overlap >= OVERLAP_RATIO_MAX / ease or signs.hideable < ease * HIDEABLE_RATIO_MIN:
        return None
    return Judged(
        signs.hideable,
        f"Only {percent(signs.overlap)} of the communication overlaps with compute; full overlap would save up to "
        f"{percent(signs.hideable)} of the time.",
        OVERLAP,
        {
            "hideable_ratio": signs.hideable,
            "hideable_ratio_min": HIDEABLE_RATIO_MIN,
            "overlap_ratio": signs.overlap,
            "overlap_ratio_max": OVERLAP_RATIO_MAX,
        },
    )


def judge_memory(signs: RunSignals, ease: float = 1.0) -> Verdict:
    """Whether torch's allocators have too little memory, or keep too little of it."""
    if signs.retrying is None or signs.churning is None:
        return Abstain("no allocator was sampled often enough")
    least = ease * INTERVALS_RATIO_MIN
    if signs.retrying >= least:
        sentence = (
            f"The GPUs' memory runs out again and again: torch emptied its cache {signs.retries} times in the "
            "sampled intervals, which stops the GPU each time."
        )
    elif signs.churning >= least:
        sentence = "Torch allocates memory from the driver and frees it again during training, which stops the GPU."
    else:
        return None
    return Judged(
        0.0,
        sentence,
        FREE_THE_ALLOCATOR,
        {
            "retrying_intervals_ratio": signs.retrying,
            "churning_intervals_ratio": signs.churning,
            "intervals_ratio_min": INTERVALS_RATIO_MIN,
            "retries": float(signs.retries),
        },
    )


class Rule(NamedTuple):
    """How one kind of finding is judged. It is silent beside findings with a cause of `restates` (None: beside every
    straggler), and beside those of a kind in `after`, which say why.
    """

    judge: Callable[[RunSignals, float], Verdict]
    restates: frozenset[str] | None
    after: frozenset[str] = frozenset()


ANY_CAUSE: Final = None
RULES: Final[Mapping[str, Rule]] = {
    "data_bound": Rule(judge_data, frozenset({"data_loading"})),
    "host_bound": Rule(judge_host, frozenset({"host_cpu", "garbage_collection"})),
    "low_gpu_utilisation": Rule(judge_utilisation, ANY_CAUSE, frozenset({"data_bound", "host_bound"})),
    "communication_bound": Rule(judge_communication, ANY_CAUSE, frozenset({"slow_link"})),
    "serialised_communication": Rule(judge_serial_communication, ANY_CAUSE, frozenset({"slow_link"})),
    "memory_pressure": Rule(judge_memory, frozenset({"memory_pressure"})),
}
"""By kind, which is the cause too, in the order in which they are asked."""


class RunRules:
    """The detector of what holds up a whole job. `steps` is how many of the last steps it looks at."""

    kinds = frozenset(RULES)

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """What holds now, unless what is known already explains it."""
        signs = read_signals(view, self._steps)
        if isinstance(signs, Abstain):
            return signs
        known = {finding.kind: finding for finding in explained}
        found = []
        for kind, rule in RULES.items():
            judged = rule.judge(signs, 1.0)
            if isinstance(judged, Judged) and (kind in known or not _is_explained(rule, explained)):
                found.append(Candidate(_describe(kind, judged, signs, known.get(kind))))
        return found

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Whether it no longer holds by the laxer threshold either."""
        signs = read_signals(view, self._steps)
        return not isinstance(signs, Abstain) and RULES[finding.kind].judge(signs, CLOSE_RATIO) is None


def _is_explained(rule: Rule, explained: Sequence[Finding]) -> bool:
    return any(
        finding.kind in rule.after
        or (finding.kind == STRAGGLER if rule.restates is ANY_CAUSE else finding.cause in rule.restates)
        for finding in explained
    )


def _describe(kind: str, judged: Judged, signs: RunSignals, known: Finding | None) -> Finding:
    return Finding(
        kind=kind,
        # The windows looked at move on with the run; what was found to begin earlier has begun there.
        since_step=signs.since_step if known is None else known.since_step,
        cause=kind,
        sentence=judged.sentence,
        past=f"{put_in_past(judged.sentence)} That was so{WHEN}.",
        suggestion=judged.suggestion,
        severity="warning" if judged.ratio >= CRITICAL_RATIO or kind == "memory_pressure" else "info",
        evidence=judged.evidence,
    )
