"""HeldObjects: what a process holds more of, who has it and which line adds to it. The truth is what the test keeps."""

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankscope.agent.captures import held_objects
from rankscope.agent.captures.held_objects import HeldObjects, measure_elements, read_resident
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.measure.line_samples import HELD, GrownContainer, HeldGrowth
from rankscope.measure.messages import SampleOrder
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S

MIB = 2**20
kept: list[Any] = []


class Trainer:
    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {"loss": []}
        self.seen: dict[int, Any] = {}


def look(add: Callable[[], None], *, halves: tuple[int, int] = (20, 20), before: int = 20) -> HeldGrowth:
    """Return what three looks have found, with so many calls of `add` before the first, and between each two."""
    now_ns = 0
    for _ in range(before):
        add()
    order = SampleOrder(id="s1", mode=HELD, interval_ns=0, lasts_ns=2 * NS_PER_S, steps_max=0)
    held = HeldObjects(order, threading.get_ident(), ScriptFiles({}), monotonic_ns=lambda: now_ns)
    for half in halves:
        for _ in range(half):
            add()
        now_ns += NS_PER_S
        held.take_steps([StepRecord(step=0, start_host_ns=now_ns - 1, duration_ns=1, phases_ns={})] * half)
    assert held.is_over(now_ns)
    return held.finish()


def find(grown: HeldGrowth, name: str) -> GrownContainer:
    return next(one for one in grown.containers if one.name.startswith(name))


@pytest.fixture(autouse=True)
def _made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects made before the tests are frozen (conftest.py)."""
    monkeypatch.setattr(sys.modules[__name__], "kept", [])


def add_tensor() -> None:
    kept.append(torch.ones(MIB // 4))  # the line


def line_of(mark: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(mark))


def test_list_of_a_module_has_its_tensors_bytes_and_its_line() -> None:
    grown = look(add_tensor)
    assert grown.steps == 40
    found = grown.containers[0]
    assert (found.name, found.kind, found.length, found.added) == ("kept of test_held_objects.py", "list", 60, 40)
    assert found.element == "torch.Tensor"
    assert found.line.startswith(f"test_held_objects.py:{line_of('# the line')} (add_tensor)")
    assert found.added_bytes == pytest.approx(40 * MIB, rel=0.01)


def test_attribute_of_an_object_is_named_with_its_class() -> None:
    trainer = Trainer()
    numbers = iter(range(1000))

    def add() -> None:
        trainer.seen[next(numbers)] = np.ones(MIB // 8)  # a dict

    found = find(look(add), "attribute seen of Trainer")
    assert (found.kind, found.element, found.added) == ("dict", "numpy.ndarray", 40)
    assert found.added_bytes == pytest.approx(40 * MIB, rel=0.01)


def test_container_in_a_container_is_named_by_the_way_to_it() -> None:
    trainer = Trainer()
    found = find(look(lambda: trainer.history["loss"].append(bytes(MIB))), "attribute history of Trainer")
    assert (found.name, found.element) == ("attribute history of Trainer['loss']", "bytes")


def test_old_containers_in_each_other_are_named_by_the_way_to_them() -> None:
    # The collector tells of young objects first, so that a list of the search itself would come before them.
    trainer = Trainer()
    trainer.seen[0] = {"b": {"c": []}}
    gc.collect()
    found = find(look(lambda: trainer.seen[0]["b"]["c"].append(bytes(MIB))), "attribute seen of Trainer")
    assert found.name == "attribute seen of Trainer[0]['b']['c']"


def test_small_objects_are_added_up() -> None:
    def add() -> None:
        kept.append([{"row": n, "text": f"{n:032}"} for n in range(64)])

    found = find(look(add), "kept of")
    row = {"row": 300, "text": f"{1:032}"}
    of_one = 64 * (sys.getsizeof(row) + sys.getsizeof(row["text"]))  # numbers below 257 are Python's own
    assert found.added_bytes == pytest.approx(40 * of_one, rel=0.25)


def test_local_variable_has_the_line_that_adds_to_it() -> None:
    local: deque[Any] = deque()

    def add() -> None:
        local.append(torch.ones(MIB // 4))

    found = next(one for one in look(add).containers if one.kind == "deque")
    assert found.name.startswith("local in ")  # a closure has it here


def test_container_that_was_filled_once_is_not_growing() -> None:
    assert not [one for one in look(add_tensor, halves=(40, 0)).containers if one.name.startswith("kept")]
    assert not [one for one in look(add_tensor, halves=(0, 40)).containers if one.name.startswith("kept")]


def test_what_elements_have_in_common_is_not_counted() -> None:
    shared = torch.ones(MIB)
    apart = [[shared, np.ones(100)] for _ in range(8)]
    found = measure_elements(apart)
    assert found is not None
    assert 800 <= found < 1200


def test_views_count_with_the_memory_they_keep() -> None:
    assert measure_elements([np.ones(1000)[:1]]) == 8000
    assert measure_elements([torch.ones(1000)[:1]]) == 4000


def test_too_many_objects_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_objects, "OBJECTS_MAX", 10)
    gc.collect()  # what earlier tests have left might go meanwhile
    grown = look(lambda: kept.append([]))
    assert (grown.is_searched, grown.containers) == (False, ())
    assert grown.added_objects >= 40


def test_resident_memory_by_kind(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmRSS:\t 9 kB\nRssAnon:\t 4 kB\nRssFile:\t 3 kB\nRssShmem:\t 2 kB\n")
    assert read_resident(str(status)) == {"RssAnon": 4096, "RssFile": 3072, "RssShmem": 2048}
    assert read_resident(str(tmp_path / "none")) == {}


class Asked(dict[Any, Any]):
    """Whatever is asked of it is a call of the script's code."""

    def __iter__(self) -> Any:
        pytest.fail("it was asked")

    def __sizeof__(self) -> int:
        pytest.fail("it was asked")

    def items(self) -> Any:
        pytest.fail("it was asked")


def test_code_of_the_script_is_not_called() -> None:
    def add() -> None:
        kept.append(Asked(key=kept))

    found = find(look(add), "kept of")
    assert found.element.endswith("Asked")
