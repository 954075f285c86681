"""A real collector reads the earlier runs of its store, and says that a new one is slower from its first steps on."""

import time
from contextlib import closing
from pathlib import Path

from rankscope.collector.detect.run_rules.earlier_runs import SLOWER_THAN_EARLIER
from rankscope.collector.steps.equal_work import Work
from rankscope.collector.storage.database import Database
from rankscope.measure.units import s_to_ns
from tests.integration.serving import serving
from tests.integration.wire_ranks import telling
from tests.unit.collector.runs.run_stories import MS, Story
from tests.unit.collector.storage.test_earlier_runs import keep_starts, start_at

STEP_MS = 35
"""Of a story: data, forward and backward of 10 ms each, and a transfer of 5 ms."""
USUAL_MS = 30
STEPS = 180


def test_run_that_is_slower_from_its_first_steps_is_found(tmp_path: Path) -> None:
    path, now_s = tmp_path / "runs.db", time.time()
    usual = start_at(0.0, Work(2))
    keep_starts(path, {
        f"story@20261120T10000{place}Z": type(usual)(
            begun_wall_s=now_s - 1_000 + place, work=Work(2), first_step=10, last_step=137, steps=128,
            step_ns=float((USUAL_MS + 0.1 * place) * MS), nodes=("node-z",),
        )
        for place in range(5)
    })  # fmt: skip
    with closing(Database(path)) as database, closing(database.open_connection()) as connection:
        connection.execute("UPDATE runs SET is_known = 0")  # else the collector would take the latest one up again
    story = Story(2)
    story.begun_wall_ns = s_to_ns(now_s)
    with serving("--store", str(path)) as served, telling(story, served.endpoint):
        story.train(STEPS)
        run = served.wait_for_run("story", lambda run: any(one.kind == SLOWER_THAN_EARLIER for one in run.findings))
    (found,) = [one for one in run.findings if one.kind == SLOWER_THAN_EARLIER]
    assert found.slowdown_ratio is not None
    assert round(found.slowdown_ratio, 2) == round(STEP_MS / (USUAL_MS + 0.2), 2)
    assert "New nodes: node-a." in found.sentence
