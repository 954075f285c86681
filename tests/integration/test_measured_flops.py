"""FLOPs of a step that a run measures by itself, against those counted by hand."""

import json

from rankscope.agent.agent_overhead import NOT_GOVERNED
from rankscope.agent.governor import FULL_WINDOWS, HEAD_START_NS
from rankscope.measure.model_flops import MEASURED
from tests.integration.listening_collector import listening
from tests.integration.torchrun import ALONE, CHECKOUT, OFTEN, run_forked

FIRST, SECOND = 2 * 128 * 256, 2 * 256 * 10
"""FLOPs of the forward of each layer for one sample."""
FORWARD, BACKWARD = FIRST + SECOND, FIRST + 2 * SECOND
"""The first layer's input needs no gradient."""
BATCH, MICRO_BATCHES = 4, 2
BUDGET = 0.05
"""Of the time; a second of it is there at the start, for windows of some ten ms."""
SOON = {
    "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "1", "RANKSCOPE_FLOPS_INTERVAL_S": "1", "RANKSCOPE_GPU": "false",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": str(BUDGET),
}  # fmt: skip


def test_run_measures_its_flops_within_its_budget_and_again_when_the_batch_has_changed() -> None:
    with listening() as collector:
        environment = {**ALONE, **OFTEN, **SOON, "RANKSCOPE_COLLECTOR": collector.endpoint, "PYTHONPATH": CHECKOUT}
        ended = run_forked("changing_batch.py", environment=environment)
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    for one, batch in zip(found, (BATCH, 2 * BATCH), strict=True):
        samples = MICRO_BATCHES * batch
        assert one["model"] == 3 * samples * FORWARD
        assert one["executed"] == samples * (FORWARD + BACKWARD)
        assert one["types"] == {"fp32": [1.0, 1.0]}
    (life,) = collector.lives
    assert life.losses.errors == {}
    last = life.reports[-1]
    spent_ns = sum(cost_ns for part, cost_ns in last.cost.part_ns.items() if part not in NOT_GOVERNED)
    assert last.cost.part_ns[FULL_WINDOWS] > 0
    assert spent_ns <= BUDGET * (last.host_ns - life.reports[0].host_ns + HEAD_START_NS)
    assert last.flops.source == MEASURED
    assert last.totals.executed_flops is not None
    of_batch = MICRO_BATCHES * BATCH * (FORWARD + BACKWARD)
    assert last.totals.executed_flops % of_batch == 0, "whole steps of the two batches"
