"""Growth of the counters of machines."""

from collections.abc import Iterator

from rankscope.collector.detect.machine_growth import (
    NodeCounts,
    SampledStretch,
    find_machines,
    find_stretch,
    find_stretch_before,
)
from tests.unit.collector.detect.machines import growing

COUNTS = growing(20, "cpu_steal_ns")  # at steps 0, 10, 20
SAMPLES = [one.sample for one in COUNTS]


def test_samples_before_the_step_do_not_count() -> None:
    assert find_stretch(COUNTS, 0) == SampledStretch(SAMPLES[0], SAMPLES[2], 20)
    assert find_stretch(COUNTS, 1) == SampledStretch(SAMPLES[1], SAMPLES[2], 10)


def test_one_sample_or_one_step_is_no_stretch() -> None:
    assert find_stretch((), 0) is None
    assert find_stretch(COUNTS, 11) is None
    assert find_stretch(COUNTS, 21) is None
    assert find_stretch([COUNTS[0], COUNTS[0]], 0) is None


def test_machine_is_what_its_lowest_rank_has_read() -> None:
    other = growing(5, "cpu_steal_ns")
    nodes = {0: "a", 2: "b", 3: "b"}
    machines = find_machines(nodes, {3: other, 2: COUNTS, 0: (), 9: other})
    assert (machines.nodes, machines.counts) == (nodes, {"b": COUNTS})
    assert (machines.ranks_on("b"), machines.ranks_on("c")) == ([2, 3], ())


def test_samples_after_the_step_are_not_before_it() -> None:
    assert find_stretch_before(COUNTS, 19) == SampledStretch(SAMPLES[0], SAMPLES[1], 10)
    assert find_stretch_before(COUNTS, 9) is None
    assert find_stretch_before(COUNTS[1:], 9) is None


def test_samples_of_a_machine_are_looked_for_once_a_step() -> None:
    reads = []

    class Watched(list[NodeCounts]):
        def __iter__(self) -> Iterator[NodeCounts]:
            reads.append(1)
            return super().__iter__()

    machines = find_machines({0: "a"}, {0: Watched(COUNTS)})
    assert machines.find_stretch("a", 1) is machines.find_stretch("a", 1)
    assert machines.find_stretch("a", 0) == SampledStretch(SAMPLES[0], SAMPLES[2], 20)
    assert len(reads) == 2
