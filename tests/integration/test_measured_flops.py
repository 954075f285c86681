"""FLOPs of a step that a run measures by itself, and its live MFU, against those counted by hand."""

import json
from collections.abc import Sequence

import pytest

from rankscope.agent.agent_overhead import NOT_GOVERNED
from rankscope.agent.governor import FULL_WINDOWS, HEAD_START_NS
from rankscope.measure.model_flops import MEASURED, StepFlops
from rankscope.measure.units import NS_PER_S
from tests.integration.listening_collector import listening
from tests.integration.torchrun import ALONE, CHECKOUT, OFTEN, run_forked

FIRST, SECOND = 2 * 128 * 256, 2 * 256 * 10
"""FLOPs of the forward of each layer for one sample."""
FORWARD, BACKWARD = FIRST + SECOND, FIRST + 2 * SECOND
"""The first layer's input needs no gradient."""
BATCH, MICRO_BATCHES = 4, 2
BUDGET = 0.05
"""Of the time; a second of it is there at the start, for windows of some ten ms."""
PEAK_TFLOPS = 0.001
STEPS_MIN = 100
"""Steps that the live MFU is compared over: the script times twice as many, and a report comes every 0.1 s."""
SOON = {
    "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "1", "RANKSCOPE_CONSTANT_FLOPS_INTERVAL_S": "1",
    "RANKSCOPE_GPU": "false",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": str(BUDGET), "RANKSCOPE_PEAK_TFLOPS": str(PEAK_TFLOPS),
}  # fmt: skip


def test_flops_are_measured_within_budget_and_anew_for_new_batch() -> None:
    with listening() as collector:
        environment = {**ALONE, **OFTEN, **SOON, "RANKSCOPE_COLLECTOR": collector.endpoint, "PYTHONPATH": CHECKOUT}
        ended = run_forked("changing_batch.py", environment=environment)
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    for one, batch in zip(found["measured"], (BATCH, 2 * BATCH), strict=True):
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
    check_mfu([report.flops for report in life.reports], found["ends_ns"])


def check_mfu(reported: Sequence[StepFlops], ends_ns: Sequence[int]) -> None:
    """Compare the live MFU of the last report with steps of the first batch alone with the hand count over the time
    that the script has measured of as many steps. HFU is of all products that ran.
    """
    of_step = MICRO_BATCHES * BATCH * 3 * FORWARD
    sums = [(flops, flops.model) for flops in reported if flops.model is not None]
    flops, counted = [
        (flops, model) for flops, model in sums if model.steps < len(ends_ns) and model.flops == model.steps * of_step
    ][-1]
    assert counted.steps >= STEPS_MIN
    seconds = (ends_ns[counted.steps] - ends_ns[0]) / NS_PER_S
    mfu = counted.steps * of_step / seconds / (PEAK_TFLOPS * 1e12)
    assert flops.mfu == pytest.approx(mfu, rel=0.01)
    assert flops.hfu == pytest.approx(mfu * (FORWARD + BACKWARD) / (3 * FORWARD), rel=0.01)
