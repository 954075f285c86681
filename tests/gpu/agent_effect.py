"""Steps per second without the agent, with it before its first window, and between its windows.

Each arm is a process of its own that times itself (`scripts/timed_training.py`). Which of its blocks lie before the
first full window of the agent, and which between windows, follows from the windows that the agent reports. It has its
defaults but for the interval between windows, so that a few come within seconds: `always` keeps its windows, `governed`
ends them if they slow the steps. Then its blocks after the end are named apart; those between the last window and the
report that says so do not count, since the profiler library is attached in some of them and detached in others.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rankscope.agent.config import ALWAYS, GOVERNED
from rankscope.agent.profiler.window_effect import EffectState
from rankscope.measure.messages import Report
from rankscope.measure.records import AgentCost
from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, DEADLINE_S, python, run

SCRIPT: Final = str(Path(__file__).parent / "scripts" / "timed_training.py")
HOWS: Final = ("eager", "compiled", "graph")
WITHOUT: Final = "without the agent"
ARMS: Final = (WITHOUT, GOVERNED, ALWAYS)
ARM_S: Final = 6.0
GOVERNED_S: Final = 18.0
"""Long enough for the end of windows: on an H100 not within 8 s, well within 25 s."""
WHERE: Final = ("before the first window", "between windows", "after windows ended")
WARM_UP_BLOCKS: Final = 3
APART_STEPS: Final = 20
"""A block nearer than that to a window does not count: the first window of a device, which is discarded and not
reported, comes directly before the first one that is; and the agent reduces a window while the next steps run.
"""
SETTINGS: Final = {"RANKSCOPE_FULL_WINDOW_INTERVAL_S": "1", "RANKSCOPE_REPORT_INTERVAL_S": "0.5"}


class Block(NamedTuple):
    """Consecutive steps, and their us a step."""

    first_step: int
    us: float


class Rates(NamedTuple):
    """Steps per second, block by block: before the first window, after it outside of windows, and after windows ended.
    Without the agent, or a window, all of them are `before`.
    """

    before: Sequence[float] = ()
    between: Sequence[float] = ()
    ended: Sequence[float] = ()


class Arm(NamedTuple):
    """What one process shows, in `blocks` blocks, and what the agent has said of the effect of windows."""

    rates: Rates = Rates()
    cost: AgentCost | None = None
    problem: str = ""
    blocks: int = 0


def parse_blocks(printed: str) -> list[Block]:
    """Return the blocks that a training has printed, without those in which it became warm."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [Block(line["first_step"], line["us"]) for line in lines][WARM_UP_BLOCKS:]


def split_blocks(blocks: Sequence[Block], window_steps: Sequence[int], ended_step: int | None = None) -> Rates:
    """Return the steps per second of the blocks. They have the length of the distance between two. `ended_step` is a
    step by which windows had ended; None: they had not.
    """
    length = min((after.first_step - before.first_step for before, after in pairwise(blocks)), default=1)
    first, last = min(window_steps, default=None), max(window_steps, default=-1)
    before, between, ended = [], [], []
    for block in blocks:
        end = block.first_step + length
        if first is None or end + APART_STEPS <= first:
            before.append(1e6 / block.us)
        elif ended_step is not None and block.first_step > last:
            ended += [1e6 / block.us] if block.first_step > ended_step else []
        elif not any(block.first_step - APART_STEPS <= step < end + APART_STEPS for step in window_steps):
            between.append(1e6 / block.us)
    return Rates(before, between, ended)


def find_end(reports: Sequence[Report]) -> int | None:
    """Return the last step that was reported when windows of the GPU had ended; None if they never had."""
    last_step = -1
    for report in reports:
        if report.steps.row_count:
            last_step = int(report.steps.column("step").max())
        if report.cost.window_effect == EffectState.ENDED.value:
            return last_step
    return None


def run_arm(
    how: str,
    arm: str,
    *,
    device: str = "cuda",
    seconds: float = ARM_S,
    blocks_min: int = 0,
    deadline_s: float = DEADLINE_S,
) -> Arm:
    """Run one process, and return what it shows."""
    script = (SCRIPT, how, "--device", device, "--seconds", str(seconds), "--blocks-min", str(blocks_min))
    try:
        if arm == WITHOUT:
            ended, lives = run(python(*script), ALONE, deadline_s=deadline_s), []
        else:
            with listening() as collector:
                settings = {**SETTINGS, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_DEVICE_WINDOWS": arm}
                ended = run(python(*AGENT, *script), {**ALONE, **settings}, deadline_s=deadline_s)
                lives = collector.lives
    except AssertionError as error:
        return Arm(problem=str(error)[:300])
    if ended.exit_code or len(lives) != (arm != WITHOUT):
        return Arm(problem=f"ended with {ended.exit_code}, {len(lives)} ranks reported: {ended.stderr[-300:]}")
    blocks = parse_blocks(ended.stdout)
    if arm == WITHOUT:
        return Arm(split_blocks(blocks, ()), blocks=len(blocks))
    reports = lives[0].reports
    steps = [window.first_step for window in lives[0].breakdowns]
    return Arm(split_blocks(blocks, steps, find_end(reports)), reports[-1].cost, blocks=len(blocks))


def find_reason_to_skip(how: str) -> str | None:
    """Return why this kind of training cannot run here; None where it can."""
    if how == "compiled" and importlib.util.find_spec("triton") is None:
        return "not run: torch.compile needs triton, which is not installed"
    return None


def describe_arms(arms: Mapping[str, Arm]) -> str:
    """Return the medians of all arms, with their change against the steps without the agent, in one line.

    >>> arms = {WITHOUT: Arm(Rates([100.0, 90.0, 110.0])), ALWAYS: Arm(Rates(between=[75.0]))}
    >>> describe_arms(arms)
    'without the agent 100.0 steps/s (3 blocks); always: between windows 75.0 (-25.0 %, 1 blocks)'
    """
    plain = arms[WITHOUT]
    if not plain.rates.before:
        return f"without the agent: {plain.problem or 'no blocks'}"
    base = median(plain.rates.before)
    parts = [f"{WITHOUT} {base:.1f} steps/s ({len(plain.rates.before)} blocks)"]
    for name, arm in arms.items():
        if name == WITHOUT:
            continue
        shown = [
            f"{where} {median(rates):.1f} ({median(rates) / base - 1:+.1%}, {len(rates)} blocks)".replace("%", " %")
            for where, rates in zip(WHERE, arm.rates, strict=True)
            if rates
        ]
        parts.append(f"{name}: {', '.join(shown) or arm.problem or 'no blocks'}{_describe_cost(arm.cost)}")
    return "; ".join(parts)


def _describe_cost(cost: AgentCost | None) -> str:
    """Return what the agent itself has measured; empty where it has not."""
    if cost is None or cost.attached_ratio is None:
        return ""
    detached = "" if cost.detached_ratio is None else f", {cost.detached_ratio:+.1%} detached"
    return f" (by the agent {cost.attached_ratio:+.1%} between windows{detached}: {cost.window_effect})".replace(
        "%", " %"
    )


def compare(how: str, find_left_s: Callable[[], float]) -> str:
    """Return the result of one kind of training, as a line. An arm is killed when no time is left."""
    reason = find_reason_to_skip(how)
    if reason is not None:
        return reason
    arms = {}
    for arm in ARMS:
        seconds = GOVERNED_S if arm == GOVERNED else ARM_S
        arms[arm] = run_arm(how, arm, seconds=seconds, deadline_s=min(DEADLINE_S, find_left_s()))
    return describe_arms(arms)
