"""Growth of the counters of machines."""

from rankscope.collector.detect.machine_growth import Stretch, find_machines, find_stretch
from tests.unit.collector.detect.machines import growing

COUNTS = growing(20, "cpu_steal_ns")  # at steps 0, 10, 20
SAMPLES = [one.sample for one in COUNTS]


def test_samples_before_the_step_do_not_count() -> None:
    assert find_stretch(COUNTS, 0) == Stretch(SAMPLES[0], SAMPLES[2], 20)
    assert find_stretch(COUNTS, 1) == Stretch(SAMPLES[1], SAMPLES[2], 10)


def test_one_sample_or_one_step_is_no_stretch() -> None:
    assert find_stretch((), 0) is None
    assert find_stretch(COUNTS, 11) is None
    assert find_stretch(COUNTS, 21) is None
    assert find_stretch([COUNTS[0], COUNTS[0]], 0) is None


def test_machine_is_what_its_lowest_rank_has_read() -> None:
    other = growing(5, "cpu_steal_ns")
    nodes = {0: "a", 2: "b", 3: "b"}
    assert find_machines(nodes, {3: other, 2: COUNTS, 0: (), 9: other}) == (nodes, {"b": COUNTS})
