"""DDP with more buckets than gloo has worker threads: what a rank still computes while its buckets wait is its own."""

import re

from rankscope.collector.detect.finding import STRAGGLER
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.serving import find_rank, have_ended, serving
from tests.integration.torchrun import OFTEN, Ended, forked_ranks, started

WORK_S = (0.005, 0.006, 0.017)
SHORTFALL_MAX = 0.85
"""Of a rank's own time as the script measures it. By the starts of its buckets alone it would be 0.7 of that: all but
two begin when the last rank comes, and the rank seems to have waited since the second one."""


def train(*options: str) -> tuple[RunSnapshot, Ended]:
    """Return the run of three ranks, and how its job has ended."""
    with serving() as served:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_RUN": "buckets"}
        with started(forked_ranks(3, "-m", "rankscope.agent", "buckets.py", *options), environment) as job:
            ended = job.wait()
        run = served.wait_for_run("buckets", have_ended)
    assert (ended.exit_code, ended.heard_of_agent) == (0, [])
    return run, ended


def test_rank_computing_while_its_buckets_wait_is_not_waiting() -> None:
    run, ended = train("--work-s", *map(str, WORK_S))
    own_ms = {int(rank): float(ms) for rank, ms in re.findall(r"own (\d) ([\d.]+) ms", ended.stdout)}
    found_ms = {rank: (find_rank(run, rank).own_ns_median or 0.0) / 1e6 for rank in own_ms}
    assert len(own_ms) == len(WORK_S)
    assert all(found_ms[rank] > SHORTFALL_MAX * own_ms[rank] for rank in own_ms), (found_ms, own_ms)
    slow = [one for one in run.findings if one.kind == STRAGGLER]  # a busy machine may hold up another one for a while
    found = max(slow, key=lambda one: one.slowdown_ratio or 0.0)
    assert found.ranks == (2,)
    assert found.slowdown_ratio is not None
    assert found.slowdown_ratio < own_ms[2] / own_ms[1] / SHORTFALL_MAX


def test_wait_of_a_root_for_a_late_receiver_is_charged_to_it() -> None:
    # Rank 0, which sends the buffer, waits for rank 2 in each forward, and rank 1 for both in the first bucket.
    run, _ = train("--buffer", "--work-s", "0.002", "0.002", "0.002", "--data-s", "0", "0", "0.04")
    caused_ns = [find_rank(run, rank).wait_caused_ns_median for rank in range(3)]
    assert caused_ns[2] is not None
    assert run.wait_untraced_ns is not None
    assert 60e6 < caused_ns[2] < 120e6, "two ranks wait 40 ms each, one of them in several buckets at once"
    assert run.wait_untraced_ns < 0.2 * caused_ns[2]
    assert all(other is not None and other < 0.5 * caused_ns[2] for other in caused_ns[:2]), caused_ns
