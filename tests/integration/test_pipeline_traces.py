"""Pipelines recorded by real torch with gloo: which stage is named, and that a clean one names none."""

import json
from collections import Counter
from collections.abc import Mapping

import pytest

from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import CrossRank
from rankscope.collector.traces.timeline import merge
from tests.integration.faults import IS_SOAK, sized
from tests.integration.torchrun import forked_ranks, run

RANKS = 4
MESSAGES = 3 * 8 * 2 * 3
"""3 steps of 8 microbatches, forward and backward over 3 borders."""
BARRIERS = 3
"""One at the end of each step."""
CASES = {"clean": [], "second": [1], "third": [2], "first": [0], "last": [3]}
FACTOR = 1.3 if IS_SOAK else 1.6
"""Beside other tests each pause ends late, on all stages: what is left of 1.3 may be less than stages differ by."""
STAGES = ("clean:-1:1", f"second:1:{FACTOR}", "third:2:1.6", f"first:0:{FACTOR}", f"last:3:{FACTOR}")


@pytest.fixture(scope="module", params=range(sized(1, 5)))
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, CrossRank]:
    folder = tmp_path_factory.mktemp("pipelines")
    ended = run(forked_ranks(RANKS, "pipeline_1f1b.py", str(folder), *STAGES))
    assert ended.exit_code == 0, ended.stderr
    found = {case: analyze(str(folder / case)).cross_rank for case in CASES}
    merge(str(folder / "clean"), folder / "merged.json")
    events = json.loads((folder / "merged.json").read_bytes())["traceEvents"]
    flows = Counter(event["cat"] for event in events if event.get("ph") == "s")
    # A send that is recorded after its arrival has no arrow: on a busy machine 17 of 144.
    assert MESSAGES / 2 < flows["message"] <= MESSAGES
    assert flows["collective"] == BARRIERS
    return {case: across for case, across in found.items() if across is not None}


@pytest.mark.parametrize("case", sorted(CASES))
def test_slow_stage_is_named_and_no_other(case: str, recorded: Mapping[str, CrossRank]) -> None:
    assert [(one.kind, one.rank) for one in recorded[case].findings] == [("slow_stage", rank) for rank in CASES[case]]


def test_all_messages_are_paired_and_the_stages_in_order(recorded: Mapping[str, CrossRank]) -> None:
    staged = recorded["clean"].pipeline
    assert staged is not None
    assert (staged.message_count, staged.unpaired_count, staged.step_count) == (MESSAGES, 0, 3)
    assert [stage.ranks for stage in staged.stages] == [[0], [1], [2], [3]]


def test_bubble_is_that_of_the_schedule(recorded: Mapping[str, CrossRank]) -> None:
    staged = recorded["clean"].pipeline
    assert staged is not None
    assert staged.bubble_ratio is not None
    # 3 of 3 + 8 slots are bubble; a busy machine adds waits.
    assert 3 / 11 - 0.03 < staged.bubble_ratio < 3 / 11 + 0.15
