"""The bytes of a heat map: what they say of which rank and step, read back by hand."""

import json
import struct

import numpy as np
import pytest

from rankscope.collector.publish.api.heat_map import HeatMapColumn, of_intervals, of_steps, to_cells, unpack
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.storage.rank_intervals import COLUMNS, RankInterval
from tests.unit.collector.runs.run_stories import Story


def picture_of(story: Story) -> HeatMapSteps:
    """The last steps of a story that has some."""
    assert story.run.heat_map_steps is not None
    return story.run.heat_map_steps


def interval_of(begin_wall_s: float, slowdowns: dict[int, float]) -> RankInterval:
    """A minute in which these ranks were so slow."""
    count = len(slowdowns)
    columns = {name: np.full(count, np.nan, dtype=np.float32) for name in COLUMNS}
    columns["rank"] = np.array(list(slowdowns), dtype=np.float32)
    columns["slowdown_ratio"] = np.array(list(slowdowns.values()), dtype=np.float32)
    return RankInterval(0, begin_wall_s, begin_wall_s + 60.0, columns)


def test_bytes_are_length_head_and_one_for_each_rank_and_step() -> None:
    # 30 ms of own work a step on all ranks but one, which has 60 ms for two of the four steps that are looked at.
    story = Story(4).join().train(5).train(2, data={2: 40.0})
    body = of_steps("bert", 4, picture_of(story))
    (length,) = struct.unpack_from("<I", body)
    head = json.loads(body[4 : 4 + length])
    assert (head["run"], head["source"], head["world_size"], head["ranks"]) == ("bert", "steps", 4, [[0, 3]])
    assert [column["step"] for column in head["columns"]] == [3, 4, 5, 6]
    cells = np.frombuffer(body[4 + length :], dtype=np.uint8).reshape(4, 4)
    assert cells[:2].tolist() == [[128] * 4] * 2
    # Own time counts the transfer of 5 ms: 65 / 35 = 1.857, and 128 + 32 * log2(1.857) = 156.6.
    assert cells[2:].tolist() == [[128, 128, 157, 128]] * 2


@pytest.mark.parametrize(
    ("ratio", "cell"), [(1.0, 128), (2.0, 160), (0.5, 96), (15.6, 255), (1e9, 255), (1e-9, 1), (float("nan"), 0)]
)
def test_cell_is_a_ratio_on_a_scale_of_32_to_the_octave(ratio: float, cell: int) -> None:
    assert to_cells(np.log(np.array([ratio]))).tolist() == [cell]


def test_run_without_steps_has_a_head_and_no_cell() -> None:
    head, cells = unpack(of_steps("bert", 4, picture_of(Story(4).join().tick())))
    assert (head.columns, cells.size) == ((), 0)


def test_ranks_that_are_missing_make_stretches() -> None:
    head, _ = unpack(of_intervals("bert", 16, [interval_of(0.0, dict.fromkeys((0, 1, 2, 7, 9, 10), 1.0))]))
    assert head.ranks == ((0, 2), (7, 7), (9, 10))


def test_past_has_a_column_an_interval_and_gaps_for_absent_ranks() -> None:
    first, second = interval_of(600.0, {0: 1.0, 1: 2.0}), interval_of(660.0, {1: 1.0, 3: float("nan")})
    head, cells = unpack(of_intervals("bert", 4, [first, second]))
    assert head.source == "intervals"
    assert head.columns == (
        HeatMapColumn(attempt=0, begin_wall_s=600.0, end_wall_s=660.0),
        HeatMapColumn(attempt=0, begin_wall_s=660.0, end_wall_s=720.0),
    )
    assert cells.tolist() == [[128, 160, 0], [0, 128, 0]]


def test_past_without_an_interval_is_empty() -> None:
    head, cells = unpack(of_intervals("bert", 4, []))
    assert (head.ranks, head.columns, cells.size) == ((), (), 0)
