"""Tails of backwards with real NCCL: two DDP ranks on one GPU, one of which is late.

On an H100 with torch 2.11 the rank that waits had a forward of 0.306, a backward of 0.551 and a tail of 53.2 ms, the
one that was late by 15 ms a forward of 15.46, a backward of 0.51 and a tail of 35.65 ms.
"""

import statistics
from pathlib import Path

import pytest
import torch

from rankscope.measure.units import NS_PER_MS
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, OFTEN, run, torchrun

pytestmark = pytest.mark.gpu

SCRIPT = str(Path(__file__).parent / "scripts" / "tails_on_one_gpu.py")
SLEEP_MS = 15.0
SLACK_MS = 5.0
"""The two processes take turns on the GPU."""
TIMED_MIN = 8
SETTINGS = {
    "RANKSCOPE_DEVICE_WINDOWS": "off",
    "RANKSCOPE_COLLECTIVE_WINDOWS": "0",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "1",
    "SLEEP_MS": str(SLEEP_MS),
}


@pytest.fixture(scope="module")
def lives() -> list[Life]:
    with listening() as collector:
        ended = run(torchrun(2, *AGENT, SCRIPT), {**OFTEN, **SETTINGS, "RANKSCOPE_COLLECTOR": collector.endpoint})
    assert ended.exit_code == 0, ended.stderr
    if "refused" in ended.stdout:
        pytest.skip(f"NCCL {torch.cuda.nccl.version()} refuses two ranks on one GPU")
    return sorted(collector.lives, key=lambda life: life.hello.identity.rank)


def median_ms(life: Life) -> tuple[float, float]:
    """Return the medians of the tail and of the device step without it, in ms."""
    timed = [record for record in life.steps if record.device_tail_ns is not None]
    assert len(timed) >= TIMED_MIN
    tails_ns = [record.device_tail_ns or 0 for record in timed]
    own_ns = [sum((record.device_phases_ns or {}).values()) - (record.device_tail_ns or 0) for record in timed]
    return statistics.median(tails_ns) / NS_PER_MS, statistics.median(own_ns) / NS_PER_MS


def test_every_timed_step_has_a_tail_and_training_goes_on(lives: list[Life]) -> None:
    for life in lives:
        assert life.losses.errors == {}
        assert life.losses.device_tails_skipped == {}
        timed = [record for record in life.steps if record.device_phases_ns is not None]
        assert all(record.device_tail_ns is not None for record in timed)


def test_late_rank_has_the_longer_own_time_and_the_shorter_tail(lives: list[Life]) -> None:
    (waiting_tail_ms, waiting_own_ms), (late_tail_ms, late_own_ms) = map(median_ms, lives)
    assert late_own_ms - waiting_own_ms == pytest.approx(SLEEP_MS, abs=SLACK_MS)
    assert waiting_tail_ms - late_tail_ms == pytest.approx(SLEEP_MS, abs=SLACK_MS)
