"""A whole job whose torch has a GPU that is pretended: what its reports say of the device, and that all goes on."""

import pytest

from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import ALONE, CHECKOUT, OFTEN, run_forked

BACKWARD_NS, BLOCK_NS = 6_000_000, 1_000_000
WARMUP_STEPS = 4


@pytest.fixture(scope="module")
def life() -> Life:
    """What the rank has said, after its end."""
    with listening() as collector:
        given = {
            **OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint, "PYTHONPATH": CHECKOUT,
            "RANKSCOPE_GPU": "false", "RANKSCOPE_CONSTANT_WARMUP_STEPS": str(WARMUP_STEPS),
            "RANKSCOPE_CONSTANT_SAMPLE_INTERVAL_S": "0.5",
        }  # fmt: skip
        ended = run_forked("pretended_gpu.py", environment=given)
    assert (ended.exit_code, ended.stdout, ended.left) == (0, "trained to the end\n", ()), ended.stderr
    assert "failed" not in ended.stderr
    (found,) = collector.lives
    return found


def test_steps_from_the_warm_up_on_are_timed_on_the_device(life: Life) -> None:
    timed = [record for record in life.steps if record.device_phases_ns is not None]
    assert timed
    assert timed[0].step == WARMUP_STEPS
    for record in timed:
        assert record.device_phases_ns is not None
        assert record.device_phases_ns["backward"] >= BACKWARD_NS
    # The host's own backward is over long before the device's: not in every step of a busy machine, but in most.
    assert sorted(record.phases_ns["backward"] for record in timed)[len(timed) // 2] < BACKWARD_NS


def test_steps_waiting_for_the_device_are_in_order_and_none_lost(life: Life) -> None:
    assert [record.step for record in life.steps] == list(range(120))


def test_totals_count_what_the_steps_say(life: Life) -> None:
    totals = life.reports[-1].totals
    timed = [record.device_phases_ns for record in life.steps if record.device_phases_ns is not None]
    assert totals.device_steps == len(timed)
    assert totals.device_step_ns == sum(sum(phases_ns.values()) for phases_ns in timed)
    assert totals.device_phases_ns["backward"] == sum(phases_ns["backward"] for phases_ns in timed)


def test_no_timing_failed_and_no_part_of_the_agent_did(life: Life) -> None:
    assert life.losses.errors == {}
    assert set(life.losses.device_timings_skipped) <= {"not_ready"}  # the last step's, at most


def test_blocks_are_timed_on_the_device_with_what_they_keep(life: Life) -> None:
    found = [report.layers for report in life.reports if report.layers is not None]
    assert found
    assert (found[-1].kind, found[-1].absent, found[-1].calls) == ("Block", "", 1)
    forward, backward, low, high, held = found[-1].columns
    # What the stream needs for it, and the gap where the host is late with the next.
    assert all(one is not None and BLOCK_NS / 2 <= one < 3 * BLOCK_NS for one in forward)
    assert all(one is not None and BLOCK_NS <= one < 4 * BLOCK_NS for one in backward)
    assert all(least <= most for least, most in zip(low, high, strict=True) if least is not None and most is not None)
    assert held == tuple(1024 * (number + 1) for number in range(6))


def test_allocator_of_the_device_is_in_the_reports(life: Life) -> None:
    found = [report.allocator for report in life.reports if report.allocator is not None]
    assert found
    assert (found[-1].reserved_bytes, found[-1].retries, found[-1].absent) == (4096, 0, {})
