"""Categories of a snapshot's allocations, against a model whose bytes are counted by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.collector.memory.plain_pickle import load_plain
from rankscope.collector.memory.snapshot_categories import StackOrigin, categorize_by_origin, find_origin
from rankscope.collector.memory.snapshot_events import FRAMES_MAX, ORIGIN_FRAMES_MAX, Frame, check_snapshot
from rankscope.collector.memory.snapshot_report import build_report
from rankscope.collector.reports.snapshot_text import NO_CATEGORIES, render_snapshot
from rankscope.measure.memory_timeline import CATEGORIES, pair_events
from tests.unit.collector.memory.snapshots import entry, snapshot

RECORDED = Path(__file__).parents[3] / "traces" / "h200" / "snapshot.pickle"
LAYERS, WIDTH, ROWS, STEPS = 8, 1024, 256, 4
"""The recorded model: linear layers with biases, each followed by GELU, under AdamW, in float32."""
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
RESULT = ROWS * WIDTH * 4

TORCH = "/venv/lib/python3.11/site-packages/torch"
SCRIPT = ("/home/a/train.py", "<module>")
CALL = (f"{TORCH}/nn/modules/module.py", "_call_impl")
FORWARD = [(f"{TORCH}/nn/modules/linear.py", "forward"), CALL, SCRIPT]
MAKE = [(f"{TORCH}/nn/modules/linear.py", "__init__"), SCRIPT]
MOVE = [(f"{TORCH}/nn/modules/module.py", "convert"), (f"{TORCH}/nn/modules/module.py", "_apply"), SCRIPT]
OPTIMIZER = [(f"{TORCH}/optim/sgd.py", "_single_tensor_sgd"), (f"{TORCH}/optim/optimizer.py", "wrapper"), SCRIPT]
RETURN = [(f"{TORCH}/optim/sgd.py", "sgd"), (f"{TORCH}/optim/optimizer.py", "wrapper"), SCRIPT]
ZERO_GRAD = [(f"{TORCH}/optim/optimizer.py", "zero_grad"), SCRIPT]
FUNCTION = f"{TORCH}/autograd/function.py"
BACKWARD: list[tuple[str, str]] = []
NATIVE = [("/build/csrc/autograd/engine.cpp", "evaluate_function"), ("??", "clone")]
ONE, TWO, THREE = 0x1000, 0x2000, 0x3000


def at(action: str, address: int, stack: list[tuple[str, str]] | None, size: int = 100) -> Any:
    """Return an event with this stack; None: none was recorded."""
    frames = [{"filename": file, "line": 1, "name": name} for file, name in stack or ()]
    found = entry(action, address, size, 0, frames)
    if stack is None:
        del found["frames"]
    return found


def alloc(address: int, stack: list[tuple[str, str]] | None, size: int = 100) -> Any:
    return at("alloc", address, stack, size)


def free(address: int, stack: list[tuple[str, str]] | None, size: int = 100) -> Any:
    return at("free_requested", address, stack, size)


def categories_of(*events: Any) -> list[str]:
    """Return the category of each allocation. All events move memory."""
    checked = check_snapshot(snapshot(traces=[list(events)]))
    (history,) = checked.history
    paired = pair_events(history.address, history.size)
    kinds = categorize_by_origin(paired, history.size, history.stack, checked.origins)
    return [CATEGORIES[kind] for kind in kinds.tolist()]


OWN = (alloc(THREE, [SCRIPT]), free(THREE, [CALL, SCRIPT]))
"""The stack of a free is not that of its allocation: torch has recorded those of frees, too."""


def test_recorded_model_has_its_bytes_by_hand() -> None:
    checked = check_snapshot(load_plain(RECORDED.read_bytes()))
    (history,) = (one for one in checked.history if one.event_count)
    moving = np.flatnonzero(history.size)
    size, stack = history.size[moving], history.stack[moving]
    paired = pair_events(history.address[moving], size)
    kinds = categorize_by_origin(paired, size, stack, checked.origins)
    found = {name: paired.lifetimes.bytes[kinds == place] for place, name in enumerate(CATEGORIES)}
    assert (len(found["parameters"]), found["parameters"].sum()) == (2 * LAYERS, PARAMETERS)
    assert (len(found["optimizer_state"]), found["optimizer_state"].sum()) == (4 * LAYERS, 2 * PARAMETERS)
    cleared = STEPS - 1
    """Gradients of the last step are still there: nothing says what they are."""
    assert (len(found["gradients"]), found["gradients"].sum()) == (2 * LAYERS * cleared, cleared * PARAMETERS)
    # Each layer's result and that of its GELU are saved for the backward; the smaller ones are losses.
    assert found["activations"].max() == RESULT
    assert (found["activations"] == RESULT).sum() == STEPS * 2 * LAYERS
    assert (found["activations"] > 4).sum() == STEPS * 2 * LAYERS
    report = build_report(checked, "s", with_flow=True)
    (device,) = report.report.devices
    assert device.history is not None
    assert device.history.peak_by_category is not None
    by_category = device.history.peak_by_category
    assert sum(by_category.values()) == device.history.peak_bytes
    assert (by_category["parameters"], by_category["optimizer_state"]) == (PARAMETERS, 2 * PARAMETERS)
    assert "parameters 32.03, gradients 0.00, optimizer state 64.06" in render_snapshot(report.report, 5)


@pytest.mark.parametrize(
    ("events", "category"),
    [
        ([alloc(ONE, BACKWARD), free(ONE, ZERO_GRAD)], "gradients"),
        ([alloc(ONE, NATIVE), free(ONE, ZERO_GRAD)], "gradients"),
        ([alloc(ONE, BACKWARD), alloc(TWO, BACKWARD), free(ONE, BACKWARD)], "temporary"),
        ([alloc(ONE, BACKWARD), alloc(TWO, FORWARD), free(ONE, BACKWARD)], "unknown"),
        ([alloc(ONE, BACKWARD), free(ONE, [SCRIPT])], "unknown"),
        ([alloc(ONE, BACKWARD)], "unknown"),
        ([alloc(ONE, OPTIMIZER), alloc(TWO, FORWARD)], "optimizer_state"),
        ([alloc(ONE, OPTIMIZER), alloc(TWO, FORWARD), free(ONE, [SCRIPT])], "optimizer_state"),
        ([alloc(ONE, OPTIMIZER), alloc(TWO, OPTIMIZER), alloc(TWO, [SCRIPT, *OPTIMIZER])], "unknown"),
        ([alloc(ONE, OPTIMIZER), alloc(TWO, FORWARD), free(ONE, RETURN)], "temporary"),
        ([alloc(ONE, OPTIMIZER), alloc(TWO, FORWARD), free(ONE, None)], "unknown"),
        ([alloc(ONE, MAKE)], "parameters"),
        ([alloc(ONE, MOVE), free(ONE, [SCRIPT])], "parameters"),
        ([alloc(ONE, MOVE), free(ONE, MOVE)], "temporary"),
        ([alloc(ONE, MAKE), free(ONE, MOVE)], "unknown"),
        ([alloc(ONE, MAKE), free(ONE, None)], "unknown"),
        ([alloc(ONE, FORWARD), alloc(TWO, BACKWARD), free(ONE, BACKWARD)], "activations"),
        ([alloc(ONE, FORWARD), free(TWO, BACKWARD), free(ONE, FORWARD)], "temporary"),
        ([alloc(ONE, [SCRIPT, *OPTIMIZER]), alloc(TWO, BACKWARD), free(ONE, [SCRIPT])], "activations"),
        ([alloc(ONE, FORWARD), alloc(TWO, BACKWARD)], "unknown"),
        ([alloc(ONE, None), alloc(TWO, BACKWARD), free(ONE, BACKWARD)], "unknown"),
    ],
)
def test_category_follows_from_what_allocates_and_frees(events: list[Any], category: str) -> None:
    assert categories_of(*OWN, *events)[1] == category


def test_frees_with_the_stacks_of_their_allocations_say_nothing() -> None:
    events = [alloc(ONE, MAKE), free(ONE, MAKE), alloc(TWO, OPTIMIZER), alloc(ONE, FORWARD), free(TWO, OPTIMIZER)]
    assert categories_of(*events) == ["unknown", "unknown", "unknown"]
    assert categories_of(*OWN, *events)[1:] == ["temporary", "temporary", "unknown"]


@pytest.mark.parametrize(
    ("stack", "origin"),
    [
        ([("<string>", "forward"), SCRIPT], StackOrigin.PYTHON),
        ([*NATIVE, *OPTIMIZER], StackOrigin.OPTIMIZER),
        ([(FUNCTION, "apply"), SCRIPT], StackOrigin.UNKNOWN),
        ([("/home/a/ops.py", "forward"), (FUNCTION, "apply"), SCRIPT], StackOrigin.PYTHON),
        ([("/home/a/ops.py", "backward"), (FUNCTION, "apply")], StackOrigin.BACKWARD),
        ([("/home/a/ops.py", "forward"), ("/home/a/ops.py", "backward"), (FUNCTION, "apply")], StackOrigin.BACKWARD),
        ([*FORWARD[:2], (f"{TORCH}/utils/checkpoint.py", "unpack_hook")], StackOrigin.BACKWARD),
        ([(f"{TORCH}/optim/adam.py", "step")], StackOrigin.OPTIMIZER),
        ([("/home/a/torch_optim/adam.py", "step")], StackOrigin.PYTHON),
    ],
)
def test_stack_shows_what_allocates(stack: list[tuple[str, str]], origin: StackOrigin) -> None:
    assert find_origin([Frame(file, 1, name) for file, name in stack]) is origin


@pytest.mark.parametrize(
    ("depth", "category"), [(ORIGIN_FRAMES_MAX, "optimizer_state"), (ORIGIN_FRAMES_MAX + 1, "unknown")]
)
def test_very_deep_stack_is_not_searched(depth: int, category: str) -> None:
    deep = [*OPTIMIZER, *[SCRIPT] * (depth - len(OPTIMIZER))]
    assert categories_of(alloc(ONE, deep), alloc(TWO, FORWARD)) == [category, "unknown"]


def test_outer_frames_beyond_those_that_are_kept_count() -> None:
    deep = [("/home/a/model.py", "forward")] * 2 * FRAMES_MAX
    function = [("/home/a/ops.py", "backward"), (FUNCTION, "apply")]
    checked = check_snapshot(snapshot(traces=[[alloc(ONE, deep), alloc(TWO, [*deep, *function])]]))
    assert checked.origins == [StackOrigin.UNKNOWN, StackOrigin.PYTHON, StackOrigin.BACKWARD]
    assert checked.stacks[1] == checked.stacks[2]


@pytest.mark.parametrize("stack", [None, BACKWARD, NATIVE])
def test_without_python_stacks_there_are_no_categories(stack: list[tuple[str, str]] | None) -> None:
    report = build_report(check_snapshot(snapshot(traces=[[alloc(ONE, stack)]])), "s", with_flow=False).report
    (device,) = report.devices
    assert device.history is not None
    assert device.history.peak_by_category is None
    assert NO_CATEGORIES in render_snapshot(report, 5)
