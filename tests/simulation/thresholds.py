"""Measure the effect of each threshold of detection: `python -m tests.simulation.thresholds [--seeds 2] [--workers 2]`.

The same small runs, healthy ones and ones with a slow rank, in four kinds of noise, are judged repeatedly: with the
defaults, and with one threshold at a time set lower or higher. Writes bench/results/thresholds.md, the
reason of the defaults in collector/config.py.
"""

import argparse
import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench.machine import RESULTS, describe_run
from rankscope.collector.config import CollectorConfig
from tests.simulation.scenarios import BEGIN, LAYOUTS, slow_rank
from tests.simulation.scoring import Judged, judge, summarize
from tests.simulation.world import Scenario, run

LAYOUTS_TRIED = ("dp 8", "fsdp 16")
NOISES_TRIED = ("usual", "jittery", "shared_nodes", "bursts")
RATIOS = (1.05, 1.1, 1.3)
STEPS = 200
SETTINGS: dict[str, tuple[float, ...]] = {
    "slowdown_ratio_min": (1.03, 1.05, 1.1),
    "robust_z_min": (3.0, 4.0, 5.0, 7.0),
    "persistence_ratio": (0.5, 0.7, 0.9),
    "detect_steps_min": (6, 12, 24),
}
"""Every value that is tried; the default is among them."""


class Variant(NamedTuple):
    """The defaults but for one setting; None: all of them."""

    setting: str | None
    value: float | None

    @property
    def config(self) -> CollectorConfig:
        """The collector's settings."""
        changes: dict[str, Any] = {} if self.setting is None else {self.setting: self.value}
        if self.setting == "slowdown_ratio_min":  # it closes when half of the effect is gone
            changes["slowdown_close_ratio"] = 1 + (float(changes["slowdown_ratio_min"]) - 1) / 2
        return CollectorConfig(**changes)


class Case(NamedTuple):
    """Run with the ratio of its slow rank; None in a healthy one."""

    scenario: Scenario
    ratio: float | None


def variants() -> Iterator[Variant]:
    """Yield the defaults, and every other value of every setting."""
    default = CollectorConfig()
    yield Variant(None, None)
    for setting, values in SETTINGS.items():
        yield from (Variant(setting, value) for value in values if value != getattr(default, setting))


def cases(seeds: int) -> Iterator[Case]:
    """Yield the runs that every variant judges."""
    chosen = itertools.product(LAYOUTS_TRIED, NOISES_TRIED, (None, *RATIOS), range(seeds))
    for seed, (where, noise, ratio, _) in enumerate(chosen, 1):
        faults = () if ratio is None else (slow_rank("gpu_compute", ratio),)
        yield Case(LAYOUTS[where].scenario(*faults, noise=noise, seed=seed, steps=STEPS), ratio)


def carry_out(asked: tuple[Variant, Case]) -> tuple[Variant, float | None, Judged]:
    """Judge one run under one variant."""
    variant, case = asked
    return variant, case.ratio, judge(run(case.scenario, variant.config))


def write_report(judged: Sequence[tuple[Variant, float | None, Judged]], head: str, count: int) -> str:
    """Return the table as Markdown."""
    columns = ["setting", *(f"recall {ratio:g} x" for ratio in RATIOS), "precision", "delay, steps", "false per 1e6"]
    intro = (
        f"{count} runs of 8 and 16 ranks and {STEPS} steps in each row, in noise as in `tests/simulation/noise.py`: "
        f"{', '.join(NOISES_TRIED)}. A quarter of them are healthy; in the others one rank is slow from step {BEGIN} "
        "on. *delay* is the median until the rank is named, *false per 1e6* counts findings that blame a healthy rank, "
        "per million steps of such ranks."
    )
    table = f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}"
    lines = ["# Effect of each threshold of detection", head, intro, table]
    rows = [_write_row(variant, [one for one in judged if one[0] == variant]) for variant in variants()]
    return "\n\n".join(lines) + "\n" + "\n".join(rows) + "\n"


def _write_row(variant: Variant, mine: Sequence[tuple[Variant, float | None, Judged]]) -> str:
    whole = summarize([judged for _, _, judged in mine])
    recalls = [summarize([judged for _, ratio, judged in mine if ratio == wanted]).recall for wanted in RATIOS]
    name = "**the defaults**" if variant.setting is None else f"{variant.setting} = {variant.value:g}"
    cells = [
        *("" if recall is None else f"{recall:.2f}" for recall in recalls),
        "" if whole.precision is None else f"{whole.precision:.3f}",
        "" if whole.delay_steps is None else f"{whole.delay_steps:.0f}",
        f"{whole.false_per_million:.1f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Judge and write the result down."""
    parser = argparse.ArgumentParser(description="Effect of each threshold of detection.")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each kind [2]")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    head = describe_run(f"python -m tests.simulation.thresholds --seeds {options.seeds}")
    wanted = list(cases(options.seeds))
    with multiprocessing.Pool(options.workers) as pool:
        judged = pool.map(carry_out, itertools.product(variants(), wanted), chunksize=4)
    text = write_report(judged, head, len(wanted))
    (RESULTS / "thresholds.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
