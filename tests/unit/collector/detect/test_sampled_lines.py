"""Which line costs a rank time that its peer does not spend there, and where the ranks of a hang are. Times in ms."""

import msgspec
import pytest

from rankscope.collector.detect.sampled_lines import (
    LineCost,
    LoaderState,
    SampledLines,
    compare_lines,
    describe_line,
    describe_stalled,
)
from rankscope.measure.line_samples import (
    BY_LIBRARY,
    FETCH,
    HAND_OVER,
    IDLE,
    NO_STEP,
    SampledLoader,
    SampledStack,
    SampledStep,
    SampledWorker,
)
from rankscope.measure.messages import SamplesTaken
from rankscope.measure.stalls import StackFrame
from rankscope.measure.units import NS_PER_MS, NS_PER_S

SCRIPT = "/home/me/train.py"


def at(line: int, function: str = "augment", call: str = "", inside: str = "", waits_in: str = "") -> SampledStack:
    frames = (StackFrame(SCRIPT, 50, "main"), StackFrame(SCRIPT, line, function))
    return SampledStack(frames=frames, call=call, inside=inside, waits_in=waits_in)


SLEEP = at(104, call="time.sleep", waits_in="sleep")
BACKWARD = at(60, "main", call="loss.backward")


def taken(*steps: dict[SampledStack, int], first: int = 10, samples: int = 100) -> SamplesTaken:
    """Return the samples of steps, with the time of each stack."""
    stacks = tuple({stack: None for step in steps for stack in step})
    return SamplesTaken(
        id="s1",
        state="taken",
        stacks=stacks,
        samples=samples,
        steps=tuple(
            SampledStep(
                step=first + number,
                duration_ns=sum(step.values()) * NS_PER_MS,
                stack_ns=tuple((stacks.index(stack), ms * NS_PER_MS) for stack, ms in step.items()),
            )
            for number, step in enumerate(steps)
        ),
    )


def compare(rank: SamplesTaken, peer: SamplesTaken | None) -> SampledLines:
    found = compare_lines(3, rank, None if peer is None else 1, peer)
    assert found is not None
    return found


def test_line_that_only_the_rank_has_is_named() -> None:
    found = compare(taken({SLEEP: 146, BACKWARD: 20}), taken({BACKWARD: 166}))
    assert found.sentence == "146.0 ms per step in time.sleep, called at train.py:104 (augment); its peer rank 1: none."
    assert (found.is_named, found.steps, found.first_step, found.is_same_steps) == (True, 1, 10, True)


def test_costs_are_means_of_the_steps_that_both_have() -> None:
    # Steps 10 and 11 of the rank, 11 and 12 of its peer: step 11 alone counts.
    rank = taken({SLEEP: 500, BACKWARD: 20}, {SLEEP: 100, BACKWARD: 20})
    peer = taken({SLEEP: 40, BACKWARD: 80}, {SLEEP: 900}, first=11)
    found = compare(rank, peer)
    assert found.sentence.startswith("100.0 ms per step in time.sleep")
    assert found.sentence.endswith("its peer rank 1: 40.0 ms.")
    assert [(one.ns / NS_PER_MS, (one.peer_ns or 0) / NS_PER_MS) for one in found.lines] == [(100, 40), (20, 80)]


def test_ranks_without_common_steps_are_compared_by_their_own() -> None:
    found = compare(taken({SLEEP: 100, BACKWARD: 20}), taken({BACKWARD: 120}, first=90))
    assert (found.is_same_steps, found.is_named, found.last_step) == (False, True, 10)


def test_without_a_peer_the_longest_line_is_said() -> None:
    found = compare(taken({SLEEP: 100, BACKWARD: 20}), None)
    assert (found.is_named, found.peer, found.lines[0].call, found.lines[0].peer_ns) == (True, None, "time.sleep", None)
    assert "spends 100.0 ms per step in time.sleep" in found.sentence


def test_lines_of_one_function_count_together() -> None:
    rank = taken({at(104): 30, at(105): 40, at(108): 35, BACKWARD: 20})
    found = compare(rank, taken({BACKWARD: 125}))
    assert [one.ns / NS_PER_MS for one in found.lines[:3]] == [40, 35, 30]
    assert "105.0 ms per step at train.py:104-108 (augment)" in found.sentence


def test_line_that_calls_several_functions_is_one_line() -> None:
    tanh, product = at(87, "fault", call="torch.tanh"), at(87, "fault", call="torch.matmul")
    found = compare(taken({tanh: 50, product: 55, BACKWARD: 20}), taken({BACKWARD: 125}))
    assert found.sentence == "105.0 ms per step at train.py:87 (fault); its peer rank 1: none."


def test_line_reached_in_two_ways_is_told_by_the_longer_way() -> None:
    load, seldom = at(7, call="file.read", waits_in="read of a.bin (nfs4)"), at(7, call="file.read")
    found = compare(taken({load: 90, seldom: 30, BACKWARD: 20}), taken({BACKWARD: 140}))
    assert found.sentence.startswith(
        "120.0 ms per step in file.read, called at train.py:7 (augment), in a read of a.bin"
    )


def test_line_that_differs_little_is_not_named() -> None:
    found = compare(taken({SLEEP: 4, BACKWARD: 96}), taken({BACKWARD: 100}))
    assert not found.is_named
    assert (found.lines[0].call, found.lines[0].excess_ns) == ("time.sleep", 4 * NS_PER_MS)


def test_stacks_that_were_left_out_name_no_line() -> None:
    rank = SamplesTaken(
        id="s1", state="taken", samples=50, steps=(SampledStep(step=3, duration_ns=9, stack_ns=((0, 9),)),)
    )
    assert not compare(rank, taken({BACKWARD: 100})).is_named


@pytest.mark.parametrize("rank", [taken(), taken({SLEEP: 100}, samples=19)])
def test_few_samples_say_nothing(rank: SamplesTaken) -> None:
    assert compare_lines(3, rank, 1, taken({BACKWARD: 100})) is None


def test_few_samples_of_several_steps_say_the_line() -> None:
    rank = taken({SLEEP: 500}, {SLEEP: 500}, samples=4)
    assert compare(rank, taken({BACKWARD: 500}, {BACKWARD: 500}, samples=4)).is_named


def test_peer_without_a_whole_step_is_none() -> None:
    assert compare(taken({SLEEP: 100}), taken()).peer is None


def test_line_is_said_with_all_that_is_known() -> None:
    one = LineCost(
        line="train.py:4 (load)", ns=1, call="open_image", inside="PIL/Image.py:9 (open)", waits_in="read of a (nfs)"
    )
    assert (
        describe_line(one)
        == "in open_image, called at train.py:4 (load), inside PIL/Image.py:9 (open), in a read of a (nfs)"
    )
    assert describe_line(LineCost(line="", ns=1)) == "at no Python code"


# -- hangs ------------------------------------------------------------------------------------------------------------


def stalled(*stacks: SampledStack, cores: float | None = 0.0) -> SamplesTaken:
    """Return 3 s of a stalled rank, as long at each of these."""
    each_ns = 3 * NS_PER_S // len(stacks)
    step = SampledStep(
        step=NO_STEP,
        duration_ns=each_ns * len(stacks),
        stack_ns=tuple((place, each_ns) for place in range(len(stacks))),
    )
    cpu_ns = None if cores is None else round(cores * 3 * NS_PER_S)
    return SamplesTaken(
        id="s1", state="taken", stacks=stacks, steps=(step,), samples=150, span_ns=3 * NS_PER_S, cpu_ns=cpu_ns
    )


WAITING = at(60, "main", call="loss.backward", waits_in="futex")


def test_ranks_stalled_at_one_line_are_told_after_who_they_await() -> None:
    found = describe_stalled({0: stalled(WAITING), 1: stalled(WAITING), 2: stalled(at(7, "load"), cores=0.97)}, (2,))
    assert found is not None
    assert [(one.ranks, one.line, one.call, one.waits_in) for one in found.lines] == [
        ((2,), "train.py:7 (load)", "", ""),
        ((0, 1), "train.py:60 (main)", "loss.backward", "futex"),
    ]
    assert found.sentence.startswith("Rank 2 runs on at train.py:7 (load), with 0.97 of a core; ranks 0, 1 wait in ")


def test_rank_that_comes_to_several_lines_runs_on_without_a_core() -> None:
    found = describe_stalled({0: stalled(at(7, "poll"), at(9, "poll", call="time.sleep"), cores=None)}, (0,))
    assert found is not None
    assert (found.rank, found.lines[0].line, found.lines[0].call) == (0, "train.py:7-9 (poll)", "")
    assert " runs on " in found.sentence
    assert " core" not in found.sentence


def test_hang_without_samples_has_no_lines() -> None:
    assert describe_stalled({}, (2,)) is None
    assert describe_stalled({2: taken({SLEEP: 100})}, (2,)) is None


# -- workers of data loaders ------------------------------------------------------------------------------------------

FETCHES = SampledStack(frames=(StackFrame("/home/me/dataset.py", 57, "open"),), call="PIL.Image.open", stage=FETCH)
RESTS = SampledStack(stage=IDLE)


def worker(number: int, fetches: int, *, works_ms: int, rests_ms: int, stack: SampledStack = FETCHES) -> SampledWorker:
    """Return a worker of two that has begun to fetch so many batches."""
    times_ns = (0, works_ms * NS_PER_MS), (1, rests_ms * NS_PER_MS)
    step = SampledStep(step=NO_STEP, duration_ns=(works_ms + rests_ms) * NS_PER_MS, stack_ns=times_ns)
    return SampledWorker(number=number, count=2, fetches=fetches, stacks=(stack, RESTS), step=step)


def compare_workers(*workers: SampledWorker, peers: tuple[SampledWorker, ...] = ()) -> SampledLines:
    waits = at(60, "main", call="torch.utils.data.dataloader._BaseDataLoaderIter.__next__")
    rank = msgspec.structs.replace(taken({waits: 100}), workers=workers)
    return compare(rank, msgspec.structs.replace(taken({BACKWARD: 100}), workers=peers))


def test_worker_that_needs_longer_for_a_batch_is_named() -> None:
    found = compare_workers(worker(0, 10, works_ms=310, rests_ms=3290), worker(1, 15, works_ms=3180, rests_ms=420))
    assert found.sentence.endswith(
        " Its worker 1 of 2 needs 212.0 ms a batch, 212.0 ms of it in PIL.Image.open, called at dataset.py:57 (open); "
        "the others 31.0 ms."
    )
    assert found.workers[1].stage_ratios == {
        FETCH: pytest.approx(0.8833, abs=1e-4),
        IDLE: pytest.approx(0.1167, abs=1e-4),
    }


def test_workers_with_equal_needs_are_compared_with_the_peers() -> None:
    workers = worker(0, 10, works_ms=2000, rests_ms=0), worker(1, 10, works_ms=2100, rests_ms=0)
    found = compare_workers(*workers, peers=(worker(0, 10, works_ms=310, rests_ms=3290),))
    assert "Its 2 workers need 210.0 ms a batch" in found.sentence
    assert found.sentence.endswith("; those of rank 1 31.0 ms.")


def test_worker_that_was_never_met_at_work_needs_none() -> None:
    found = compare_workers(worker(0, 9, works_ms=0, rests_ms=3600), worker(1, 9, works_ms=1800, rests_ms=0))
    assert "Its worker 1 of 2 needs 200.0 ms a batch" in found.sentence
    assert found.sentence.endswith("; the others none.")


def test_workers_that_began_one_batch_say_nothing() -> None:
    found = compare_workers(worker(0, 1, works_ms=3600, rests_ms=0))
    assert ("worker" in found.sentence, found.workers[0].batch_ns) == (False, None)


def test_workers_their_rank_does_not_wait_for_are_not_told() -> None:
    rank = msgspec.structs.replace(taken({SLEEP: 100}), workers=(worker(0, 9, works_ms=3600, rests_ms=0),))
    assert compare(rank, taken({BACKWARD: 100})).workers == ()


def compare_queues(loader: SampledLoader, *workers: SampledWorker) -> SampledLines:
    waits = at(60, "main", call="torch.utils.data.dataloader._BaseDataLoaderIter.__next__")
    rank = msgspec.structs.replace(taken({waits: 100}), workers=workers, loader=loader)
    return compare(rank, taken({BACKWARD: 100}))


def test_queues_show_waiting_batches_and_idle_workers() -> None:
    works = [worker(number, 10, works_ms=310, rests_ms=3290) for number in (0, 2)]
    loader = SampledLoader(workers=3, start_method="spawn", looks=20, ready=44, early=42, unpinned=30)
    found = compare_queues(loader, worker(1, 15, works_ms=3180, rests_ms=420), *works)
    assert found.sentence.endswith(
        "; the others 31.0 ms. 1.5 batches waited for its thread that pins memory. "
        "2.1 later batches were there meanwhile. 2 of 3 workers were mostly idle."
    )
    assert found.loader == LoaderState(workers=3, ready=2.2, early=2.1, unpinned=1.5)


def test_worker_that_cannot_hand_over_is_told() -> None:
    hands_over = msgspec.structs.replace(FETCHES, stage=HAND_OVER)
    found = compare_queues(
        SampledLoader(workers=2, looks=20, ready=10, early=10),
        worker(0, 9, works_ms=3600, rests_ms=0, stack=hands_over),
    )
    assert found.sentence.endswith(" 1 of 2 workers was mostly handing over a batch.")


def test_workers_that_did_not_answer_are_not_known() -> None:
    found = compare_queues(SampledLoader(workers=8, looks=20))
    assert found.sentence.endswith(" What its 8 workers do is not known: none has answered.")
    assert compare_queues(SampledLoader(workers=8)).loader is None


# -- other threads ----------------------------------------------------------------------------------------------------

GET = at(19, "main", call="next", waits_in="futex")
LOAD = at(12, "load", call="time.sleep", waits_in="sleep")
BY_NODES = msgspec.structs.replace(LOAD, stage=BY_LIBRARY)


def with_threads(samples: SamplesTaken, *steps: dict[SampledStack, int]) -> SamplesTaken:
    """Return samples with the time of other threads in each step."""
    stacks = tuple(dict.fromkeys((*samples.stacks, *(stack for step in steps for stack in step))))
    threads = tuple(
        msgspec.structs.replace(
            own, stack_ns=tuple((stacks.index(stack), ms * NS_PER_MS) for stack, ms in step.items())
        )
        for own, step in zip(samples.steps, steps, strict=True)
    )
    return msgspec.structs.replace(samples, stacks=stacks, threads=threads)


def test_other_threads_are_told_where_the_rank_waits_for_one() -> None:
    rank = with_threads(taken({GET: 146, BACKWARD: 20}, {GET: 150, BACKWARD: 16}), {LOAD: 300}, {LOAD: 320})
    peer = with_threads(taken({BACKWARD: 166}, {BACKWARD: 166}), {LOAD: 8}, {})
    found = compare(rank, peer)
    assert found.sentence.endswith(
        "Its other threads together: 310.0 ms per step in time.sleep, called at train.py:12 (load); "
        "those of rank 1: 4.0 ms."
    )
    assert [(one.line, one.ns / NS_PER_MS, one.peer_ns) for one in found.threads] == [
        ("train.py:12 (load)", 310.0, 4.0 * NS_PER_MS)
    ]


@pytest.mark.parametrize(
    ("rank", "peer"),
    [
        # The peer's do the same: what a script's thread looks after is no reason.
        (with_threads(taken({GET: 146}), {LOAD: 146}), with_threads(taken({BACKWARD: 146}), {LOAD: 146})),
        # It does not wait for a thread.
        (with_threads(taken({SLEEP: 146}), {LOAD: 146}), taken({BACKWARD: 146})),
        # No peer, and a thread that no library has started.
        (with_threads(taken({GET: 146}), {LOAD: 146}), None),
        (taken({GET: 146}), taken({BACKWARD: 146})),
    ],
)
def test_other_threads_are_not_told_without_reason(rank: SamplesTaken, peer: SamplesTaken | None) -> None:
    assert "other threads" not in compare(rank, peer).sentence


def test_threads_of_a_library_are_told_without_a_peer() -> None:
    found = compare(with_threads(taken({GET: 146}), {BY_NODES: 140}), None)
    assert found.sentence == (
        "Rank 3 spends 146.0 ms per step in next, called at train.py:19 (main), in a futex. "
        "Its other threads together: 140.0 ms per step in time.sleep, called at train.py:12 (load)."
    )
