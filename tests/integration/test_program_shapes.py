"""Programs of many shapes end, print and learn with the monitor as without it: a few of the table in
docs/program-shapes.md, all of them in `make soak`.
"""

import os

import pytest

from tests.integration.program_shapes import BEGIN, PAGE, SHAPES, Shape, is_possible, run_shape

REPEATS = 5


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.is_core], ids=lambda shape: shape.name)
def test_program_is_the_same_with_the_monitor(shape: Shape) -> None:
    if not is_possible(shape):
        pytest.skip(f"{shape.needs} is not installed")
    plain, watched = run_shape(shape, watched=False), run_shape(shape, watched=True)
    assert watched.differs_from(plain, shape) == ""
    assert plain.stdout.startswith("loss 0x")
    assert watched.said


@pytest.mark.skipif(not os.environ.get("SOAK"), reason="make soak: every shape takes a quarter of an hour")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_program_of_every_shape_is_the_same_each_time(shape: Shape) -> None:
    if not is_possible(shape):
        pytest.skip(f"{shape.needs} is not installed")
    plain = run_shape(shape, watched=False)
    assert [run_shape(shape, watched=True).differs_from(plain, shape) for _ in range(REPEATS)] == [""] * REPEATS


def test_table_in_the_docs_has_every_shape() -> None:
    table = PAGE.read_text().partition(BEGIN)[2]
    assert [shape.name for shape in SHAPES if f"| {shape.what} |" not in table] == []
