"""Blocking calls of a device's window: which count, how long the host waited, what followed, and the source line.

Steps 10 and 11 are reported, 12 bounds them:

    host    | step 10   0-100                       | step 11  100-200 | step 12
    calls     10 launch  [30 synchronize 60]  80      110 launch         210 launch
    device          20 kernel ......... 60    85-95      120-150            220-230
"""

from array import array
from collections.abc import Sequence

import pytest

from rankscope.agent.profiler.line_samples import LineSamples
from rankscope.measure.records import SYNCHRONIZATIONS_MAX, Synchronization, WindowSynchronizations
from tests.unit.agent.profiler.made_windows import MAIN, at, metadata_of, ran, reduce
from tests.unit.agent.traced_activities import TracedActivity

BOUNDS_US = (0, 100, 200, 300)
WORK = [*ran(10, 20, 40), *ran(80, 85, 10), *ran(110, 120, 30), *ran(210, 220, 10)]
SYNCHRONIZE = "cudaStreamSynchronize"
LOADER = 200
"""A thread that launches nothing."""
SECOND = 300
"""A thread that launches, as one of autograd."""


def wait(
    start_us: int, length_us: int, call: str = SYNCHRONIZE, operator: str | None = None, thread: int = MAIN
) -> TracedActivity:
    around = None if operator is None else at("cpu_op", operator, start_us - 1, length_us + 2, thread)
    return at("cuda_runtime", call, start_us, length_us, thread, linked=around)


def seen(*found: tuple[int, str | None], in_backward: bool = False, threads: tuple[int, ...] = (MAIN,)) -> LineSamples:
    """Samples of the training thread: when (us), and its line."""
    lines = tuple(dict.fromkeys(line for _, line in found if line is not None))
    places = array("i", (-1 if line is None else lines.index(line) for _, line in found))
    times = array("q", (at_us * 1000 for at_us, _ in found))
    return LineSamples(times.tobytes(), places.tobytes(), lines, (in_backward,) * len(lines), threads)


def find(activities: Sequence[TracedActivity], lines: LineSamples | None = None) -> WindowSynchronizations:
    found = reduce([*WORK, *activities], BOUNDS_US, lines=lines).synchronizations
    assert found is not None
    return found


def find_one(activities: Sequence[TracedActivity], lines: LineSamples | None = None) -> Synchronization:
    (one,) = find(activities, lines).kinds
    return one


# -- which calls ------------------------------------------------------------------------------------------------------


def test_window_without_a_blocking_call_reports_none() -> None:
    assert find([]) == WindowSynchronizations(first_step=10, step_count=2)


def test_window_without_work_of_a_device_reports_nothing() -> None:
    assert reduce([wait(30, 30)], BOUNDS_US).synchronizations is None


def test_window_without_a_whole_step_reports_nothing() -> None:
    assert reduce([*WORK, wait(30, 30)], BOUNDS_US[:2]).synchronizations is None


@pytest.mark.parametrize(
    "call",
    [SYNCHRONIZE, "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "hipStreamSynchronize",
     "hipDeviceSynchronize", "hipMemcpyWithStream"],
)  # fmt: skip
def test_calls_that_wait_count_in_every_spelling(call: str) -> None:
    assert find([wait(30, 30, call)]).call_ns == {call: 30_000}


@pytest.mark.parametrize("call", ["cudaStreamWaitEvent", "cudaEventQuery", "cudaEventRecord", "cudaMalloc"])
def test_other_calls_do_not_count(call: str) -> None:
    assert find([wait(30, 30, call)]).call_ns == {}


@pytest.mark.parametrize(("ends_us", "call_ns"), [(31, {"cudaMemcpyAsync": 1_000}), (32, {})])
def test_copy_counts_if_its_call_returned_after_it(ends_us: int, call_ns: dict[str, int]) -> None:
    # The call is from 30 to 31 us: the host held a pageable copy that was over by then, and not one that goes on.
    copy = ran(30, 30, ends_us - 30, "Memcpy DtoH", kind="gpu_memcpy", call="cudaMemcpyAsync")
    assert find(copy).call_ns == call_ns


def test_calls_of_threads_that_launch_nothing_do_not_count() -> None:
    assert find([wait(30, 30, thread=LOADER)]).call_ns == {}


def test_calls_of_the_step_that_only_bounds_do_not_count() -> None:
    assert find([wait(140, 5), wait(210, 50)]).call_ns == {SYNCHRONIZE: 5_000}


# -- how long ---------------------------------------------------------------------------------------------------------


def test_sums_are_by_call_and_kind() -> None:
    found = find([wait(30, 30, operator="aten::item"), wait(130, 20, operator="aten::item"), wait(90, 4, "cudaMemcpy")])
    assert found.call_ns == {SYNCHRONIZE: 50_000, "cudaMemcpy": 4_000}
    assert [(one.call, one.operator, one.count, one.waits_ns, one.longest_ns) for one in found.kinds] == [
        (SYNCHRONIZE, "aten::_local_scalar_dense", 2, 50_000, 30_000),
        ("cudaMemcpy", None, 1, 4_000, 4_000),
    ]
    assert found.waits_ns == 54_000


def test_waiting_for_a_collective_is_no_wait_for_the_own_device() -> None:
    # From 60 to 75 us only the all-reduce runs, on another stream, and another rank is waited for. With it, it is over.
    late = ran(15, 50, 25, "ncclDevKernel_AllReduce", metadata=metadata_of(1))
    assert find_one([*late, wait(30, 46)]).waits_ns == (75 - 30 - 15) * 1000


def test_longest_kinds_are_listed_and_all_count() -> None:
    calls = [wait(10 * number, number, operator=f"aten::op{number}") for number in range(1, 10)]
    found = find([*calls, *ran(6, 10, 90)])  # the device works meanwhile
    assert [one.waits_ns for one in found.kinds] == [1000 * number for number in range(9, 9 - SYNCHRONIZATIONS_MAX, -1)]
    assert found.call_ns == {SYNCHRONIZE: 45_000}


# -- what follows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start_us", "length_us", "idle_us"),
    [
        (30, 30, 25),  # the kernel ends at 60, the next begins at 85
        (48, 12, 12),  # not longer than the wait
        (48, 20, 12),  # nor than the wait without its tail: it ends with the kernel at 60
        (70, 10, 0),  # nothing was waited for
        (25, 10, 0),  # returns while the kernel runs, as when another stream was waited for
        (30, 55, 25),  # returns as the next kernel begins
        (115, 75, 35),  # waits from 115 to 150; the next work is of the step that only bounds: 220
    ],
)
def test_idle_time_around_the_end_of_a_call_is_counted(start_us: int, length_us: int, idle_us: int) -> None:
    found = find([wait(start_us, length_us)])
    assert (found.idle_ns, found.kinds[0].idle_ns) == (idle_us * 1000, idle_us * 1000)


def test_without_later_work_idle_time_ends_with_the_call() -> None:
    # The only work behind step 10 begins before the call of step 10, which another stream launched late, ends.
    queue = [*ran(10, 20, 40), *ran(110, 112, 8), wait(80, 60)]
    found = reduce(queue, (0, 100, 200)).synchronizations
    assert found is not None
    assert (found.waits_ns, found.idle_ns) == ((120 - 80) * 1000, (140 - 120) * 1000)


def test_idle_time_that_two_threads_waited_for_counts_once() -> None:
    # Both wait for the kernel that ends at 60, and the next begins at 85: 25 us, of the longer wait.
    found = find(
        [
            *ran(5, 5, 1, thread=SECOND),
            wait(50, 11, operator="aten::a", thread=SECOND),
            wait(30, 31, operator="aten::b"),
        ]
    )
    assert {one.operator: (one.waits_ns, one.idle_ns) for one in found.kinds} == {
        "aten::b": (30_000, 25_000), "aten::a": (10_000, 0),
    }  # fmt: skip
    assert found.idle_ns == 25_000


# -- whose line -------------------------------------------------------------------------------------------------------


def test_line_is_where_the_thread_was_during_the_call() -> None:
    samples = seen((20, "train.py:7 (main)"), (40, "train.py:8 (main)"), (70, "train.py:9 (main)"))
    assert find_one([wait(30, 30)], samples).line == "train.py:8 (main)"


@pytest.mark.parametrize("samples", [LineSamples(), seen((29, "train.py:7 (main)"), (60, "train.py:9 (main)"))])
def test_call_without_a_sample_within_it_has_no_line(samples: LineSamples) -> None:
    assert find_one([wait(30, 30)], samples).line is None


def test_sample_outside_of_any_script_is_no_line() -> None:
    assert find_one([wait(30, 30)], seen((40, None), (50, "train.py:9 (main)"))).line is None


def test_calls_of_different_lines_are_different_kinds() -> None:
    samples = seen((40, "train.py:8 (main)"), (140, "train.py:20 (log)"))
    found = find([wait(30, 30), wait(130, 20), wait(121, 5)], samples)
    assert [(one.line, one.waits_ns) for one in found.kinds] == [
        ("train.py:8 (main)", 30_000), ("train.py:20 (log)", 20_000), (None, 5_000),
    ]  # fmt: skip


LAUNCH_OF_SECOND = ran(5, 5, 1, thread=SECOND)


@pytest.mark.parametrize(("in_backward", "line"), [(True, "train.py:8 (main)"), (False, None)])
def test_call_of_another_thread_has_a_line_only_in_backward(in_backward: bool, line: str | None) -> None:
    samples = seen((40, "train.py:8 (main)"), in_backward=in_backward)
    assert find_one([*LAUNCH_OF_SECOND, wait(30, 30, thread=SECOND)], samples).line == line


@pytest.mark.parametrize(("threads", "line"), [((7, MAIN), "train.py:8 (main)"), ((7,), None), ((), None)])
def test_training_thread_is_known_by_any_of_its_numbers(threads: tuple[int, ...], line: str | None) -> None:
    assert find_one([wait(30, 30)], seen((40, "train.py:8 (main)"), threads=threads)).line == line


def test_call_outlasting_the_device_waited_until_the_devices_end() -> None:
    # The kernel ends at 60 us; from there to 80 us the host waits for a core.
    assert find([wait(30, 50)]).call_ns == {SYNCHRONIZE: 30_000}


# -- inside which operator --------------------------------------------------------------------------------------------


def test_operator_is_the_one_that_the_call_is_linked_to() -> None:
    assert find_one([wait(30, 30, operator="aten::_local_scalar_dense")]).operator == "aten::_local_scalar_dense"


def test_range_of_the_user_around_a_call_is_no_operator() -> None:
    around = at("user_annotation", "validation", 20, 50, MAIN)
    assert find_one([at("cuda_runtime", SYNCHRONIZE, 30, 30, MAIN, linked=around)]).operator is None
