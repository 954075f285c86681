"""Twenty-five causes in a real job of two ranks: samples of both name the line that costs one of them time."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.detect.sampled_lines import SampledLines, compare_lines
from rankscope.measure.line_samples import WHOLE
from rankscope.measure.messages import SampleOrder
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.integration.listening_collector import Life, ListeningCollector, listening
from tests.integration.torchrun import AGENT, OFTEN, SCRIPTS, forked_ranks, line_of, started

SCRIPT = "costly_lines.py"
LINES = {
    name: number
    for number, line in enumerate((SCRIPTS / SCRIPT).read_text(encoding="utf-8").splitlines(), 1)
    for name in re.findall(r"# cost: ([a-z_]+)$", line)
}
DEADLINE_S = 120.0
CALLS = {
    "sleep": "time.sleep", "lock": "", "read_pipe": "file.read", "receive": "own.recv",
    "subprocess_run": "subprocess.run", "regex": "re.match", "numpy_objects": "np.sort",
    "held_lock": "HOLDING.usleep", "collect": "gc.collect", "collect_by_itself": "garbage collection",
    "recompile": "compilation (torch.compile)", "log": "LOGGER.info", "print_out": "print",
    "checkpoint": "torch.save", "loader_stage": "time.sleep", "parse_json": "json.loads",
    "tokenize": "TOKENIZER.encode", "decode_image": "PIL.ImageFile.ImageFile.load", "convert": ".to", "python_loop": "",
    "look_up": "socket.getaddrinfo", "transform": "time.sleep", "nodes": "time.sleep",
    "node_threads": "torchdata.nodes.base_node.BaseNode.__next__",
    "worker": "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
}  # fmt: skip
"""What each line calls, as it is written there, or as the function is called where it is one of Python."""
NEEDS = {"transform": "datasets", "nodes": "torchdata", "node_threads": "torchdata"}
"""Libraries that are not on every Python."""
WAITS = {"read_pipe": "read of a pipe", "receive": "receive of a socket", "lock": "futex", "node_threads": "futex"}
"""What the kernel says of some."""


class Job:
    """A training that is told what rank 1 does."""

    def __init__(self, collector: ListeningCollector, wish: Path) -> None:
        self._collector = collector
        self._wish = wish
        self._orders = 0

    def compare(self, cause: str) -> SampledLines:
        """Return what samples of some steps with this cause say."""
        self._wish.write_text(cause, encoding="utf-8")
        reached = {one.rank: len(one.steps) for one in self._collector.lives}
        self._collector.wait_until(
            lambda lives: all(len(one.steps) > reached[one.rank] + 4 for one in lives), DEADLINE_S
        )
        self._orders += 1
        order = SampleOrder(
            id=f"{cause}-{self._orders}", mode=WHOLE, interval_ns=10 * NS_PER_MS, lasts_ns=2 * NS_PER_S, steps_max=100
        )
        self._collector.order(order)

        def has_samples(lives: list[Life]) -> bool:
            return all(order.id in one.samples and one.samples[order.id].state == "taken" for one in lives)

        self._collector.wait_until(has_samples, DEADLINE_S)
        peer, slow = (one.samples[order.id] for one in self._collector.lives)
        found = compare_lines(1, slow, 0, peer)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    wish = tmp_path_factory.mktemp("costly") / "wish"
    wish.write_text("", encoding="utf-8")
    with listening() as collector:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint}
        with started(forked_ranks(2, *AGENT, SCRIPT, str(wish)), environment) as training:
            collector.wait_until(lambda lives: len(lives) == 2 and all(len(one.steps) > 8 for one in lives), DEADLINE_S)
            yield Job(collector, wish)
            wish.write_text("stop", encoding="utf-8")
            training.wait()


@pytest.mark.parametrize("cause", sorted(LINES))
def test_line_that_costs_a_rank_time_is_named(job: Job, cause: str) -> None:
    pytest.importorskip(NEEDS.get(cause, "torch"), reason="not on this Python")
    found = job.compare(cause)
    worst = found.lines[0]
    assert found.is_named, found
    assert worst.line.partition(" ")[0] == f"{SCRIPT}:{LINES[cause]}", found
    assert worst.call == CALLS[cause], found
    assert WAITS.get(cause, worst.waits_in) == worst.waits_in, found
    if cause == "node_threads":
        place = (
            f"in time.sleep, called at {SCRIPT}:{line_of(SCRIPT, '# in the threads')} (map_in_thread); those of rank 0"
        )
        assert "Its other threads together: " in found.sentence
        assert place in found.sentence, found
    if cause == "worker":
        place = f"called at {SCRIPT}:{line_of(SCRIPT, '# in the worker')} (__getitem__)."
        assert "Its worker needs" in found.sentence
        assert found.sentence.endswith(place)
