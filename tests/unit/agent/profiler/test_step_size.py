"""StepSize: the events of a step by what autograd numbers, computed by hand."""

from concurrent.futures import ThreadPoolExecutor

from rankscope.agent.profiler.step_size import StepSize


def test_events_follow_from_nodes_and_tensors_of_a_step() -> None:
    nodes = [1_000, 1_000 + 4 * 50, 1_000 + 4 * 50 + 8 * 70]
    size = StepSize(lambda: nodes.pop(0), lambda: 10)
    assert size.estimate(4) == 12 * 50 + 30 * 10
    assert size.estimate(12) == 12 * 70 + 30 * 10


def test_same_step_asked_twice_keeps_its_estimate() -> None:
    nodes = [0, 400, 500]
    size = StepSize(lambda: nodes.pop(0), lambda: 0)
    assert [size.estimate(4), size.estimate(4)] == [1_200.0, 1_200.0]


def test_thread_that_trains_first_has_made_all_its_nodes_since() -> None:
    nodes = [9_000, 800]
    size = StepSize(lambda: nodes.pop(0), lambda: 0)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(size.estimate, 4).result() == 12 * 200
