"""Times of modules in a trace of real torch on the fake GPU, beside what hooks of the modules and of autograd saw."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.modules import BACKWARD_ELSEWHERE, OUTSIDE_MODULES
from rankscope.collector.traces.report import ModuleRow, RankReport
from tests.fake_gpu import Work, read_work
from tests.integration.fake_gpu_jobs import find_library
from tests.integration.torchrun import ALONE, CHECKOUT, run_forked

STEPS = 3
PATHS = {
    "model": "Sequential_0", "0": "Sequential_0/Block_0", "1": "Sequential_0/Block_1", "2": "Sequential_0/Linear_4",
    "0.up": "Sequential_0/Block_0/Linear_0", "0.down": "Sequential_0/Block_0/Linear_1",
    "0.act": "Sequential_0/Block_0/ReLU_0", "1.up": "Sequential_0/Block_1/Linear_2",
    "1.down": "Sequential_0/Block_1/Linear_3", "1.act": "Sequential_0/Block_1/ReLU_1",
}  # fmt: skip
"""The profiler numbers the instances of each class by their first call."""

ADDITION_NS = 21_000
"""Block_1 uses its input twice. Autograd adds the second gradient to the first once the node that made it, of the first
product of the block, has returned: after the node's hooks, and still in its range.
"""


class Recorded(NamedTuple):
    """The report, the windows of time that the hooks saw, and the work that the device did meanwhile."""

    rank: RankReport
    windows: dict[str, dict[str, list[tuple[int, int]]]]
    work: list[Work]

    @property
    def rows(self) -> dict[str | None, ModuleRow]:
        return {row.path or row.name: row for row in self.rank.modules or ()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("modules")
    ended = run_forked("module_times.py", find_library(), str(folder), environment={**ALONE, "PYTHONPATH": CHECKOUT})
    assert ended.exit_code == 0, ended.stderr
    (rank,) = analyze(str(folder / "trace.json"), modules=True).ranks
    return Recorded(rank, json.loads(ended.stdout.splitlines()[-1]), read_work(folder / "work"))


def launched_in(windows: Iterable[Any], work: Iterable[Work]) -> int:
    """The device time launched in windows of the host's time."""
    return sum(one.length_ns for one in work for begin, end in windows if begin <= one.called_ns < end)


def test_forward_of_each_module_has_what_it_launched(recorded: Recorded) -> None:
    truth = {PATHS[name]: launched_in(of["forward"], recorded.work) for name, of in recorded.windows.items()}
    assert {path: recorded.rows[path].device_total_ns for path in truth} == truth
    assert len(truth) == len(PATHS)


def test_backward_of_each_module_has_what_its_nodes_launched(recorded: Recorded) -> None:
    truth = {PATHS[name]: launched_in(of["backward"], recorded.work) for name, of in recorded.windows.items()}
    truth[PATHS["1.up"]] += STEPS * ADDITION_NS
    assert {path: recorded.rows[path].backward_device_self_ns for path in truth} == truth
    assert sum(value > 0 for value in truth.values()) == 7, "5 products, 2 activations; sums launch nothing backward"


def test_all_rows_sum_to_the_work_of_the_device(recorded: Recorded) -> None:
    first_ns = min(begin for of in recorded.windows.values() for begin, _ in of["forward"])
    work = [one for one in recorded.work if one.called_ns >= first_ns]
    rows = recorded.rows.values()
    found = sum((row.device_self_ns or 0) + (row.backward_device_self_ns or 0) for row in rows)
    zeroed = found - sum(one.length_ns for one in work)
    assert zeroed == 0
    assert {OUTSIDE_MODULES, BACKWARD_ELSEWHERE} <= set(recorded.rows)


def test_calls_are_those_of_the_steps(recorded: Recorded) -> None:
    assert Counter(row.count for row in recorded.rows.values() if row.path is not None) == {STEPS: len(PATHS)}
