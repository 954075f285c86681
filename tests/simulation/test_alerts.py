"""What Prometheus makes of findings over minutes: the alert on a slow rank, by the collector's page and our rules.

The page is rendered from the collector's snapshot every 15 s of the simulated clock, and promtool evaluates the rules
of deploy/prometheus on what was scraped.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.collector.config import CollectorConfig
from rankscope.collector.publish.metrics.pages import METRICS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.units import NS_PER_S
from tests.programs import find_program
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES
from tests.simulation.scenarios import build_layout
from tests.simulation.world import World

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules"
SCRAPE_S = 15
WANTED = re.compile(r'^(rankscope_finding_(?:open|slowdown_ratio)\{.*kind="straggler".*\}) (\S+)$', re.MULTILINE)
FIRING = 'count(ALERTS{alertname="RankscopeStragglerRank", alertstate="firing", rank="2"})'
SLOW = Fault(cause="gpu_compute", ranks=(2,), ratio=1.5, begin=60)
"""A step takes 0.13 s, so that the fault begins after 8 s and 230 steps last 30 s."""

Scrapes = Sequence[Mapping[str, str]]
"""Of each scrape the value of every series about a straggler."""


def scrape(fault: Fault, steps: int, noise: str) -> Scrapes:
    """Simulate a run of four ranks, and scrape its collector."""
    scenario = build_layout("dp", 4).scenario(fault, steps=steps, seed=2)
    world = World(replace(scenario, noise=NOISES[noise]), CollectorConfig())
    scrapes: list[dict[str, str]] = []
    goes_on = True
    while goes_on:
        goes_on = world.advance()
        if world.now_ns >= len(scrapes) * SCRAPE_S * NS_PER_S:
            snapshot = Snapshot(wall_s=world.now_ns / NS_PER_S, version="0", runs=(world.snapshot(),))
            page = b"".join(MetricPages().render(snapshot, Page(METRICS_PATH), TextFormat.CLASSIC)).decode()
            scrapes.append(dict(WANTED.findall(page)))
    return scrapes


def write_test(scrapes: Scrapes, eval_s: Sequence[int]) -> str:
    """Write a file for promtool: the alert fires at each of these times."""
    series = sorted({name for one in scrapes for name in one})
    lines = [f"rule_files: [{RULES}/recording.yml, {RULES}/alerts.yml]", "evaluation_interval: 15s", "tests:"]
    lines += [f"  - interval: {SCRAPE_S}s", "    input_series:"]
    for name in series:
        values = " ".join(one.get(name, "stale") for one in scrapes)
        lines += [f"      - series: '{name}'", f"        values: '{values}'"]
    lines.append("    promql_expr_test:")
    for second in eval_s:
        lines += [f"      - expr: '{FIRING}'", f"        eval_time: {second}s", "        exp_samples: [{value: 1}]"]
    return "\n".join(lines)


def check_fires(scrapes: Scrapes, from_s: int, tmp_path: Path) -> None:
    """Check that the alert fires at every evaluation from a time on."""
    path = tmp_path / "alerts.yml"
    path.write_text(write_test(scrapes, range(from_s, len(scrapes) * SCRAPE_S, SCRAPE_S)))
    checked = subprocess.run(
        [find_program("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alert_on_a_rank_that_is_slow_for_good_fires_and_stays(tmp_path: Path) -> None:
    # Scraped as open at 15 s, and a minute later it fires.
    check_fires(scrape(SLOW, 1000, "jittery"), 75, tmp_path)


def test_alert_on_a_rank_slow_every_other_30_s_fires_and_stays(tmp_path: Path) -> None:
    # It has passed once by 60 s, and is found again with the second bout, from 68 s on: then it stays open.
    check_fires(scrape(replace(SLOW, every=460, bout=230), 1500, "usual"), 150, tmp_path)
