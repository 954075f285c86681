"""Modules of a capture that a real collector orders of a training on the fake GPU, beside what hooks of the modules and
of autograd saw: its kernels are those of operators, forward and backward, with and without recomputed forwards.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankscope.collector.captures.capture import CaptureRequest
from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import ModuleRow, OperatorRow
from tests.fake_gpu import Work, read_work
from tests.fake_gpu.module_windows import OPERATORS, length_ns
from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.ordering_collectors import running, wait_for_end, wait_for_order
from tests.integration.torchrun import ALONE, Forked, started

RUN = "job"
STEPS = 3
REQUEST = CaptureRequest(run=RUN, ranks="all", steps=STEPS, options=("modules", "shapes"))
WAYS = ("eager", "checkpoint", "reentrant", "ddp")


class Captured(NamedTuple):
    """The events of the trace, the tree of modules, the operators, the windows that the hooks saw in the steps, the
    work of the device, the way the model runs, and the parameters of modules by path.
    """

    events: list[dict[str, Any]]
    rows: list[ModuleRow]
    operators: list[OperatorRow]
    windows: list[Mapping[str, Mapping[str, list[tuple[int, int]]]]]
    work: list[Work]
    way: str
    parameters: dict[str, int | None]

    def path_of(self, name: str) -> str:
        """The path of a module: the number of each instance is that of its first call."""
        repeated = ("Repeated_0",) if self.way in ("checkpoint", "reentrant") else ()
        classes = {
            "model": ("Sequential_0",), "0": ("Block_0",), "1": (*(repeated or ("Block_1",)),), "2": ("Linear_4",),
            "0.up": ("Block_0", "Linear_0"), "0.down": ("Block_0", "Linear_1"), "0.act": ("Block_0", "ReLU_0"),
            "1.up": (*repeated, "Block_1", "Linear_2"), "1.down": (*repeated, "Block_1", "Linear_3"),
            "1.act": (*repeated, "Block_1", "ReLU_1"), "1.block": (*repeated, "Block_1"),
        }  # fmt: skip
        inside = () if name == "model" else classes[name.replace("1.block.", "1.")]
        above = ("DistributedDataParallel_0",) if self.way == "ddp" else ()
        return "/".join((*above, "Sequential_0", *inside))


def capture(folder: Path, way: str) -> Captured:
    command = Forked(("captured_modules.py", find_library(), str(folder), "--way", way))
    with running(folder) as service:
        environment = settings(service.endpoint, run=RUN, full_windows="false", collective_windows="false")
        with started(command, {**ALONE, **environment}) as job:
            wait_for_order(service, REQUEST)
            done = wait_for_end(service)
            assert (done.state, done.problem) == ("complete", "")
            (folder / "end.part").write_text(f"{done.first_step} {done.last_step}")
            (folder / "end.part").rename(folder / "end")
            ended = job.wait()
    assert ended.exit_code == 0, ended.stderr
    files = folder / "store.db-captures" / done.id
    (rank,) = analyze(str(files / "rank-0.pt.trace.json.gz"), modules=True, flops=True).ranks
    assert rank.flops is not None
    ordered = json.loads((files / "report.json").read_bytes())["ranks"][0]
    assert len(ordered["modules"]) == len(rank.modules or ()), "the analysis of an ordered capture has the tree"
    assert ordered["flops"]["model_flops"] == rank.flops.model_flops > 0, "and with shapes the model's FLOPs"
    trace = json.loads(gzip.decompress((files / "rank-0.pt.trace.json.gz").read_bytes()))
    windows = json.loads((folder / "windows.json").read_text())
    return Captured(
        trace["traceEvents"], list(rank.modules or ()), rank.operators, windows, read_work(folder / "work"), way,
        {row.path: row.parameters for row in rank.flops.modules if row.path is not None},
    )  # fmt: skip


@pytest.fixture(scope="module", params=WAYS)
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return capture(tmp_path_factory.mktemp("captured"), request.param)


def find_truth(captured: Captured) -> Counter[tuple[str, str]]:
    """Return the device time by path and kind: of each piece of work in the innermost window around its launch."""
    windows = [
        (begin, end, captured.path_of(name), kind)
        for step in captured.windows
        for name, kinds in step.items()
        for kind, spans in kinds.items()
        for begin, end in spans
    ]
    truth: Counter[tuple[str, str]] = Counter()
    for one in captured.work:
        around = [window for window in windows if window[0] <= one.called_ns < window[1]]
        if around:
            _, _, path, kind = max(around)
            truth[path, kind] += one.length_ns
    return truth


def test_forward_and_backward_of_modules_have_their_launches(captured: Captured) -> None:
    truth = find_truth(captured)
    # As in test_module_times.py: the gradient of the second block's input is added up in the range of its first
    # product, after the hooks of the node; in a graph of its own not in place.
    addition_ns = length_ns("aten::add" if captured.way == "reentrant" else "aten::add_")
    truth[captured.path_of("1.up"), "backward"] += STEPS * addition_ns
    if captured.way == "reentrant":
        # The window of the checkpoint's node holds that addition, and storing the gradients of the two products'
        # weights and biases and of the block's input, which are no backward of a forward operator.
        stored_ns = 5 * length_ns("aten::detach")
        truth[captured.path_of("1"), "backward"] -= STEPS * (addition_ns + stored_ns)
    found = Counter[tuple[str, str]]()
    for row in captured.rows:
        if row.path is not None:
            found[row.path, "forward"] = row.device_self_ns or 0
            found[row.path, "backward"] = row.backward_device_self_ns or 0
    assert +found == +truth


def test_calls_are_those_of_steps_and_repeated_forwards(captured: Captured) -> None:
    inside = {captured.path_of(f"1.{name}") for name in ("block", "up", "down", "act")}
    repeats = captured.way in ("checkpoint", "reentrant")
    calls = {row.path: row.count for row in captured.rows if row.path is not None}
    assert calls == {path: STEPS * (2 if repeats and path in inside else 1) for path in calls}


def find_operators(events: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield for each kernel the innermost operator around the call that launched it, and its length in us."""
    calls = {one["args"]["correlation"]: one for one in events if one.get("cat") == "cuda_runtime"}
    operators = [one for one in events if one.get("cat") == "cpu_op"]
    for one in events:
        if one.get("cat") == "kernel":
            at_us, thread = (calls[one["args"]["correlation"]][key] for key in ("ts", "tid"))
            around = [op for op in operators if op["tid"] == thread and op["ts"] <= at_us < op["ts"] + op["dur"]]
            yield max(around, key=itemgetter("ts"))["name"], one["dur"]


def test_each_kernel_is_linked_to_the_operator_that_launched_it(captured: Captured) -> None:
    linked = set(find_operators(captured.events))
    assert linked <= {(name, length_ns(name) / 1000) for name in OPERATORS}
    assert {"aten::addmm", "aten::mm", "aten::clamp_min", "aten::threshold_backward"} <= {name for name, _ in linked}


def test_operators_have_the_device_time_of_their_kernels(captured: Captured) -> None:
    found = {row.name: row.device_self_ns for row in captured.operators if row.device_self_ns}
    kernels = Counter(name for name, _ in find_operators(captured.events))
    assert found == {name: count * length_ns(name) for name, count in kernels.items()}


def test_modules_have_their_parameters(captured: Captured) -> None:
    block = 16 * 32 + 32 + 32 * 16 + 16
    known = {name: captured.parameters[captured.path_of(name)] for name in ("model", "0", "1", "0.up", "0.act", "2")}
    assert known == {"model": 2 * block + 68, "0": block, "1": block, "0.up": 16 * 32 + 32, "0.act": 0, "2": 16 * 4 + 4}
