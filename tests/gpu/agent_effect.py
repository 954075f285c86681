"""Steps per second without the agent, with it before its first window, and between its windows.

Each arm is a process of its own that times itself (`scripts/timed_training.py`). Which of its blocks lie before the
first full window of the agent, and which between windows, follows from the windows that the agent reports. It has its
defaults but for the interval between windows, so that a few come within seconds: `always` keeps its windows, `governed`
ends them if they slow the steps.
"""

import importlib.util
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rankscope.agent.config import ALWAYS, GOVERNED
from rankscope.measure.records import AgentCost
from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, python, run

SCRIPT: Final = str(Path(__file__).parent / "scripts" / "timed_training.py")
HOWS: Final = ("eager", "compiled", "graph")
WITHOUT: Final = "without the agent"
ARMS: Final = (WITHOUT, GOVERNED, ALWAYS)
WARM_UP_BLOCKS: Final = 3
APART_STEPS: Final = 20
"""A block nearer than that to a window does not count: the first window of a device, which is discarded and not
reported, comes directly before the first one that is; and the agent reduces a window while the next steps run.
"""
SETTINGS: Final = {"RANKSCOPE_FULL_WINDOW_INTERVAL_S": "1", "RANKSCOPE_REPORT_INTERVAL_S": "0.5"}

Rates = Sequence[float]
"""Steps per second."""


class Block(NamedTuple):
    """Consecutive steps, and their us a step."""

    first_step: int
    us: float


class Arm(NamedTuple):
    """Steps per second of one process, block by block: before the first window and after it, outside of windows; and
    what the agent has said of their effect. Without the agent, or a window, all of them are `before`.
    """

    before: Rates
    between: Rates
    cost: AgentCost | None = None
    problem: str = ""


def parse_blocks(printed: str) -> list[Block]:
    """Return the blocks that a training has printed, without those in which it became warm."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [Block(line["first_step"], line["us"]) for line in lines][WARM_UP_BLOCKS:]


def split_blocks(blocks: Sequence[Block], window_steps: Sequence[int]) -> tuple[Rates, Rates]:
    """Return the steps per second of the blocks before the first window, and of those after it that hold none. Blocks
    have the length of the distance between two.
    """
    length = min((after.first_step - before.first_step for before, after in pairwise(blocks)), default=1)
    first = min(window_steps, default=None)
    before, between = [], []
    for block in blocks:
        end = block.first_step + length
        if first is None or end + APART_STEPS <= first:
            before.append(1e6 / block.us)
        elif not any(block.first_step - APART_STEPS <= step < end + APART_STEPS for step in window_steps):
            between.append(1e6 / block.us)
    return before, between


def run_arm(how: str, arm: str, *, device: str = "cuda", seconds: float = 8.0, blocks_min: int = 0) -> Arm:
    """Run one process, and return what it shows."""
    script = (SCRIPT, how, "--device", device, "--seconds", str(seconds), "--blocks-min", str(blocks_min))
    if arm == WITHOUT:
        ended = run(python(*script), ALONE)
        problem = "" if ended.exit_code == 0 else ended.stderr[-300:]
        return Arm(*split_blocks(parse_blocks(ended.stdout), ()), problem=problem)
    with listening() as collector:
        settings = {**SETTINGS, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_DEVICE_WINDOWS": arm}
        ended = run(python(*AGENT, *script), {**ALONE, **settings})
        lives = collector.lives
    if ended.exit_code or len(lives) != 1:
        return Arm((), (), problem=f"ended with {ended.exit_code}, {len(lives)} ranks reported: {ended.stderr[-300:]}")
    steps = [window.first_step for window in lives[0].breakdowns]
    return Arm(*split_blocks(parse_blocks(ended.stdout), steps), cost=lives[0].reports[-1].cost)


def find_reason_to_skip(how: str) -> str | None:
    """Return why this kind of training cannot run here; None where it can."""
    if how == "compiled" and importlib.util.find_spec("triton") is None:
        return "not run: torch.compile needs triton, which is not installed"
    return None


def describe_arms(arms: dict[str, Arm]) -> str:
    """Return the medians of all arms, with their change against the steps without the agent, in one line.

    >>> arms = {WITHOUT: Arm([100.0, 90.0, 110.0], []), ALWAYS: Arm([], [75.0])}
    >>> describe_arms(arms)
    'without the agent 100.0 steps/s (3 blocks); always: between windows 75.0 (-25.0 %, 1 blocks)'
    """
    plain = arms[WITHOUT]
    if not plain.before:
        return f"without the agent: {plain.problem or 'no blocks'}"
    base = median(plain.before)
    parts = [f"{WITHOUT} {base:.1f} steps/s ({len(plain.before)} blocks)"]
    for name, arm in arms.items():
        if name == WITHOUT:
            continue
        shown = [
            f"{where} {median(rates):.1f} ({median(rates) / base - 1:+.1%}, {len(rates)} blocks)".replace("%", " %")
            for where, rates in (("before the first window", arm.before), ("between windows", arm.between))
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


def compare(how: str) -> str:
    """Return the result of one kind of training, as a line."""
    return find_reason_to_skip(how) or describe_arms({arm: run_arm(how, arm) for arm in ARMS})
