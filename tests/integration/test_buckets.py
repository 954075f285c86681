"""DDP with more buckets than gloo has worker threads: what a rank still computes while its buckets wait is its own."""

import re

from rankscope.collector.detect.finding import STRAGGLER
from tests.integration.serving import find_rank, have_ended, serving
from tests.integration.torchrun import OFTEN, forked_ranks, started

RUN = "buckets"
WORK_S = (0.005, 0.006, 0.017)
SHORTFALL_MAX = 0.85
"""Of a rank's own time as the script measures it. By the starts of its buckets alone it would be 0.7 of that: all but
two begin when the last rank comes, and the rank seems to have waited since the second one."""


def test_rank_that_computes_while_its_buckets_wait_is_not_taken_to_wait() -> None:
    with serving() as served:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_RUN": RUN}
        command = forked_ranks(3, "-m", "rankscope.agent", "buckets.py", "--work-s", *map(str, WORK_S))
        with started(command, environment) as job:
            ended = job.wait()
        run = served.wait_for_run(RUN, have_ended)
    assert (ended.exit_code, ended.heard_of_agent) == (0, [])
    own_ms = {int(rank): float(ms) for rank, ms in re.findall(r"own (\d) ([\d.]+) ms", ended.stdout)}
    self_ms = {rank: (find_rank(run, rank).self_ns_median or 0.0) / 1e6 for rank in own_ms}
    assert len(own_ms) == len(WORK_S)
    assert all(self_ms[rank] > SHORTFALL_MAX * own_ms[rank] for rank in own_ms), (self_ms, own_ms)
    (found,) = [one for one in run.findings if one.kind == STRAGGLER]
    assert found.ranks == (2,)
    assert found.slowdown_ratio is not None
    assert found.slowdown_ratio < own_ms[2] / own_ms[1] / SHORTFALL_MAX
