"""Say in a sentence how two runs differ. Pure: RunComparison -> text.

A part is named where it is a tenth of the difference or more, and its own interval lies on the same side of 0. The
shares that are named, and that of all other parts, sum to 100 %.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

from rankscope.collector.comparison.block_bootstrap import CONFIDENCE
from rankscope.collector.comparison.run_comparison import (
    ALL_STEPS,
    EXCLUDED_RATIO,
    PartRow,
    RunComparison,
    is_within,
    judge,
)  # fmt: skip
from rankscope.collector.detect.run_rules.earlier_runs import DEVIATION_FLOOR
from rankscope.collector.steps.run_start import USES, USUAL_RATIO_MAX
from rankscope.measure.text import to_line
from rankscope.measure.units import format_share

NAMED_SHARE_MIN: Final = 0.1
NODES_NAMED_MAX: Final = 4
EXPOSED: Final = USES[1]
"""The part of the step that communication takes."""


def describe_comparison(found: RunComparison) -> str:
    """Return the verdict: whether B was slower than A, which parts the difference consists of, and what else
    changed.
    """
    return " ".join([_describe_step(found), *_describe_changes(found)])


def find_named_parts(found: RunComparison) -> list[PartRow]:
    """Return the parts that the verdict names, the largest first: uses of the device, or phases where those are not
    known.
    """
    rows = found.uses or found.phases
    named = [row for row in rows if row.share is not None and row.share >= NAMED_SHARE_MIN and _is_beyond_noise(row)]
    return sorted(named, key=lambda row: -(row.share or 0.0))


def _is_beyond_noise(row: PartRow) -> bool:
    """Return whether its interval does not contain 0."""
    return row.difference_low_ns > 0 or row.difference_high_ns < 0


def _describe_step(found: RunComparison) -> str:
    level = f"{100 * found.confidence:g} % interval"
    interval = f"{found.ratio_low:.3f} to {found.ratio_high:.3f}"
    ratio = f"a usual step of B took {found.ratio:.3f} times as long as one of A ({level} {interval})"
    match found.outcome:
        case "no difference":
            return f"{_describe_equal(found, ratio)}.{_describe_long(found)}"
        case "not known":
            return _describe_unknown(found, ratio)
    took = f"took {found.ratio:.2f} times as long as"
    sides = f"a usual step {took} one of A"
    if found.basis == ALL_STEPS:
        sides = f"the mean step, with long ones (over {USUAL_RATIO_MAX:g} times the median), {took} that of A"
    interval = f"{level} {found.ratio_low:.2f} to {found.ratio_high:.2f}"
    return f"B was {found.outcome}: {sides} ({interval}): {_describe_parts(found)}."


def _describe_equal(found: RunComparison, ratio: str) -> str:
    """Return how sure it is that there is no difference that counts."""
    margin = f"within the margin of {100 * found.margin:g} %"
    if not is_within(found.ratio_low, found.ratio_high, found.margin):
        margin += f"; a change of {_describe_excluded(found)} or more is excluded"
    if _contains_1(found):
        return f"No difference: {ratio}, which is {margin}"
    return f"No difference that counts: {ratio}, {'longer' if found.ratio > 1 else 'shorter'} and {margin}"


def _describe_unknown(found: RunComparison, ratio: str) -> str:
    """Return why it is not known, and how many steps would tell if the ratio stayed as it is."""
    is_beyond = not is_within(found.ratio, found.ratio, found.margin)
    what = f"slower or faster by more than the margin of {100 * found.margin:g} %"
    if _contains_1(found):
        what = "faster" if found.ratio < 1 and is_beyond else "slower"
    why = "contains 1" if is_beyond else f"reaches beyond {_describe_excluded(found)}"
    return (
        f"Not known whether B was {what}: {ratio}. The runs are too short to tell: the interval {why}; about "
        f"{find_steps_factor(found)} times as many steps would be enough if the ratio stayed the same."
    )


def _describe_excluded(found: RunComparison) -> str:
    return f"{100 * EXCLUDED_RATIO * found.margin:.3g} %"


def _contains_1(found: RunComparison) -> bool:
    return found.ratio_low <= 1 <= found.ratio_high


def find_steps_factor(found: RunComparison) -> int:
    """Return how many times as many steps make the interval of a ratio that is not known narrow enough: its width
    falls with their square root. 2 or more.
    """
    ratio = abs(math.log(found.ratio))
    is_beyond = not is_within(found.ratio, found.ratio, found.margin)
    wide = math.log(found.ratio_high / found.ratio_low) / 2
    allowed = ratio if is_beyond else math.log(1 + EXCLUDED_RATIO * found.margin) - ratio
    return max(2, math.ceil((wide / allowed) ** 2))


def _describe_long(found: RunComparison) -> str:
    """Return what is known of the long steps where usual ones show no difference; empty where neither side had one."""
    if not found.a.long_steps and not found.b.long_steps:
        return ""
    row = next(row for row in found.step_times if row.name.endswith(ALL_STEPS))
    of_a, of_b = format_share(found.a.long_time_ratio), format_share(found.b.long_time_ratio)
    shares = f"{of_a} of the time of A and {of_b} of B"
    is_known = judge(row, found.margin) == "no difference"
    verdict = "within the margin too" if is_known else "so whether these cost more is not known"
    return (
        f" Steps over {USUAL_RATIO_MAX:g} times the median took {shares}; with them the ratio is {row.ratio:.3f} "
        f"({row.ratio_low:.3f} to {row.ratio_high:.3f}), {verdict}."
    )


def _describe_parts(found: RunComparison) -> str:
    named = find_named_parts(found)
    if not named:
        return "no part of the step differs by more than its noise and a tenth of the difference"
    shares = [(_name_part(row, found), round(100 * (row.share or 0.0))) for row in named]
    rest = 100 - sum(share for _, share in shares)
    if rest:
        shares.append(("other parts", rest))
    (name, share), *others = shares
    first = f"{share} % of the difference is {'' if found.uses else 'in the phase '}{name}"
    return ", ".join([first, *(f"{share} % {name}" for name, share in others)])


def _name_part(row: PartRow, found: RunComparison) -> str:
    """Return the name of a part, that of communication with the group that has changed where one has most of it."""
    if row.name == EXPOSED and found.communication_group:
        return f"{row.name} of the group {to_line(found.communication_group)}"
    return row.name


def _is_within_starts(found: RunComparison) -> bool:
    """Return whether a difference is no larger than that of two starts of the same work may be by chance."""
    if found.outcome not in {"slower", "faster"} or found.a.run_id == found.b.run_id or found.start_deviation is None:
        return False
    return abs(math.log(found.ratio)) < _find_start_noise(found.start_deviation)


def _find_start_noise(deviation: float) -> float:
    """Return what two starts differ by in 95 of 100 pairs: each has this deviation of its own."""
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(2) * deviation


def _describe_starts(found: RunComparison) -> str:
    deviation = found.start_deviation or 0.0
    spread = f"{100 * deviation:.1f} %{' or less' if deviation <= DEVIATION_FLOOR else ''}"
    noise = 100 * math.expm1(_find_start_noise(deviation))
    return (
        f"{found.start_runs} earlier runs of this work differed by {spread} from start to start (standard deviation), "
        f"so two starts may differ by up to {noise:.1f} % by chance alone: start B again before you look for a cause."
    )


def _describe_changes(found: RunComparison) -> list[str]:
    sentences = [_describe_starts(found)] if _is_within_starts(found) else []
    if found.nodes_new:
        nodes = "1 node of B is" if len(found.nodes_new) == 1 else f"{len(found.nodes_new)} nodes of B are"
        sentences.append(f"{nodes} not among those of A: {_list(found.nodes_new)}.")
    sentences += [f"{change[0].upper()}{change[1:]}." for change in found.versions_changed]
    if found.unequal:
        sentences.append(f"The work was not equal: {'; '.join(found.unequal)}.")
    return sentences


def _list(names: Sequence[str]) -> str:
    more = len(names) - NODES_NAMED_MAX
    return ", ".join(names[:NODES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
