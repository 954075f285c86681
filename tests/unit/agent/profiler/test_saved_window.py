"""The data read from the profiler equal the trace file that torch writes of the same session."""

from collections.abc import Callable

import numpy as np
import pytest

from rankscope.agent.profiler.reduce_window import reduce_window
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from tests.unit.agent.profiler.older_torch import find_older_profiler
from tests.unit.agent.profiler.saved_window import record_window

STEPS = 3
Find = Callable[[], TorchProfiler]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")


by_any_torch = pytest.mark.parametrize("find", [TorchProfiler.find, find_older_profiler], ids=["2.13", "older"])


@by_any_torch
def test_window_agrees_with_torchs_file_of_it(find: Find) -> None:
    window = record_window("cpu", STEPS, find_profiler=find)
    assert all(np.array_equal(*both) for both in zip(window.live.sets, window.file.sets, strict=True))
    assert np.array_equal(window.live.unit_starts_ns, window.file.unit_starts_ns)


@by_any_torch
def test_operators_lie_in_the_step_that_ran_them(find: Find) -> None:
    window = record_window("cpu", STEPS, find_profiler=find)
    counts = [found.operator_count for found in reduce_window(window.request).breakdowns]
    assert len(set(counts)) == 1, "all steps are alike"
    assert sum(count or 0 for count in counts) == len(window.file.unit_starts_ns)
