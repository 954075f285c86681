"""Ranks that ran out of GPU memory: who, why, what would help, and when the finding closes. Bytes are round GiB."""

import dataclasses

import msgspec
import numpy as np

from rankscope.collector.detect.detectors import detect
from rankscope.collector.detect.finding import Abstain, Finding, close_finding
from rankscope.collector.detect.memory.headroom import find_device_headroom
from rankscope.collector.detect.memory.out_of_memory import (
    QUIET_NS,
    OutOfMemoryErrors,
    find_cause,
    find_other_bytes,
)
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import AllocatorCounts, OutOfMemorySeen, RunView, Samples
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.out_of_memory import HeldMemory, OutOfMemory
from rankscope.measure.records import AllocatorSample, DeviceSample
from rankscope.measure.stalls import StackFrame
from tests.unit.collector.steps.step_series import series_of, view_of

GIB = 2**30
STEPS = 20
DETECTOR = OutOfMemoryErrors()
_NOTHING = np.empty((0, 4))
NO_STEPS = StepSeries(np.arange(0), (0, 1, 2, 3), _NOTHING, _NOTHING, _NOTHING, {}, own_is_measured=True)

FULL = OutOfMemory(
    number=1, host_ns=0, asked_bytes=4 * GIB, free_bytes=2 * GIB, limit_bytes=80 * GIB, allocated_bytes=74 * GIB,
    reserved_bytes=76 * GIB, inactive_split_bytes=GIB, step=19, phase="forward",
)  # fmt: skip


def notice(**known: object) -> OutOfMemory:
    return msgspec.structs.replace(FULL, **known)


def view(
    *errors: tuple[int, OutOfMemory],
    peaks_gib: tuple[int | None, ...] = (70, 72, 74, 71),
    seen_ns: int = 0,
    now_ns: int = 0,
    after_step: int | None = STEPS - 1,
    used_gib: tuple[int, ...] = (),
    steps: int = STEPS,
) -> RunView:
    """Build four ranks of which some had an error; `used_gib` is the memory in use on each GPU, of 80."""
    by_rank: dict[int, list[OutOfMemorySeen]] = {rank: [] for rank in range(4)}
    for rank, one in errors:
        by_rank[rank].append(OutOfMemorySeen(one, seen_ns + rank, after_step))
    return view_of(
        series_of([[100.0] * 4] * steps),
        nodes={0: "n0", 1: "n0", 2: "n1", 3: "n1"},
        now_collector_ns=now_ns,
        samples=Samples(
            breakdowns={},
            gc_pauses={},
            devices={
                rank: [DeviceSample(host_ns=0, uuid="GPU", memory_used_bytes=used * GIB, memory_total_bytes=80 * GIB)]
                for rank, used in enumerate(used_gib)
            },
            allocators={
                rank: [AllocatorCounts(9, AllocatorSample(host_ns=0, allocated_peak_bytes=peak and peak * GIB))]
                for rank, peak in enumerate(peaks_gib)
            },
            memory_errors=by_rank,
        ),
    )  # fmt: skip


def find(seen: RunView) -> Finding | None:
    found = DETECTOR.find(seen, ())
    assert not isinstance(found, Abstain)
    assert len(found) <= 1
    assert all(candidate.lost_ns is None for candidate in found)
    return found[0].finding if found else None


def found_in(seen: RunView) -> Finding:
    found = find(seen)
    assert found is not None
    return found


def test_run_without_errors_has_no_finding() -> None:
    assert find(view()) is None


def test_rank_needing_as_much_as_its_peers_is_told_to_need_less() -> None:
    found = found_in(view((2, FULL), used_gib=(70, 79, 78, 60)))
    assert (found.ranks, found.since_step, found.cause, found.severity) == ((2,), 19, "memory_full", "warning")
    assert found.headline == "Rank 2 (n1): out of GPU memory in step 19 (forward)"
    assert found.why == "78.0 GiB needed with this allocation; median of the other ranks so far 71.0 GiB"
    assert found.also == (
        "4.0 GiB asked for, 2.0 GiB of the device free",
        "76.0 GiB reserved by torch, 74.0 GiB of it in use by tensors",
        "least left on another rank: 1.0 GiB on rank 1",
    )
    assert found.suggestion == suggest("out_of_memory", "memory_full")
    assert found.evidence == {
        "asked_bytes": 4 * GIB, "free_bytes": 2 * GIB, "limit_bytes": 80 * GIB, "allocated_bytes": 74 * GIB,
        "reserved_bytes": 76 * GIB, "unused_bytes": 2 * GIB, "inactive_split_bytes": GIB, "other_bytes": 2 * GIB,
        "errors": 1, "others_needed_bytes_median": 71 * GIB, "others_headroom_bytes_min": GIB,
    }  # fmt: skip


def test_closed_finding_says_the_same() -> None:
    found = found_in(view((2, FULL)))
    assert close_finding(found, until_step=30, lasted_s=9.0).sentence == found.sentence


def test_rank_far_above_its_peers_has_an_imbalance() -> None:
    # It needed 78 GiB. The median of the others is 62: 78 / 62 = 1.258; at 63 it would be 1.238.
    assert found_in(view((2, FULL), peaks_gib=(62, 62, None, None))).cause == "memory_imbalance"
    found = found_in(view((2, FULL), peaks_gib=(63, 63, 79, 50)))
    assert found.cause == "memory_full"
    assert "half of the other ranks" not in found.why


def test_imbalance_names_what_the_others_needed() -> None:
    found = found_in(view((2, FULL), peaks_gib=(40, 41, 70, 50)))
    assert found.why == "78.0 GiB needed with this allocation, 41.0 GiB at most on half of the other ranks so far"


def test_unused_memory_that_was_enough_is_fragmentation() -> None:
    # 76 - 71 = 5 GiB were unused, and 4 asked for.
    found = found_in(view((2, notice(allocated_bytes=71 * GIB))))
    assert found.cause == "fragmentation"
    assert "expandable_segments" in found.suggestion
    assert found.why.startswith("enough memory reserved and unused, but in no usable piece")
    assert find_cause(notice(allocated_bytes=72 * GIB + 1), None) != "fragmentation"


def test_memory_outside_of_torch_is_named() -> None:
    # 80 - 2 - 70 = 8 GiB: a tenth of the device, and more than was asked for.
    found = found_in(view((2, notice(reserved_bytes=70 * GIB, allocated_bytes=69 * GIB))))
    assert found.cause == "other_memory"
    assert found.why == "8.0 GiB of the device in use outside of torch's allocator"
    a_little_less = notice(reserved_bytes=70 * GIB + 1, allocated_bytes=69 * GIB)
    assert find_cause(a_little_less, 70 * GIB) == "memory_full"


def test_bytes_that_are_not_known_give_no_cause() -> None:
    unknown = notice(allocated_bytes=None, reserved_bytes=None, free_bytes=None, step=None, phase="")
    found = found_in(view((2, unknown)))
    assert (found.cause, find_other_bytes(unknown), find_cause(FULL, None)) == ("unattributed", None, "unattributed")
    assert (found.what, found.why, found.also) == ("out of GPU memory", "", ("4.0 GiB asked for",))


def test_phase_that_is_not_known_is_left_out() -> None:
    assert found_in(view((2, notice(phase="")))).what == "out of GPU memory in step 19"


def test_ranks_that_ran_out_together_are_one_finding() -> None:
    found = found_in(view((3, notice(step=18)), (1, FULL), peaks_gib=(70, 1, 72, 1)))
    assert (found.ranks, found.since_step) == ((1, 3), 19)
    assert found.headline == "Ranks 1, 3: out of GPU memory, first on rank 1 in step 19 (forward)"
    assert found.evidence["others_needed_bytes_median"] == 72 * GIB  # of 70, 72, and the 78 of rank 3


def test_all_ranks_that_run_out_alike_are_full() -> None:
    # The others held 74 GiB and asked for 4, too, whatever they had reported before.
    found = found_in(view(*((rank, FULL) for rank in range(4)), peaks_gib=(1, 1, 1, 1)))
    assert (found.cause, found.ranks) == ("memory_full", (0, 1, 2, 3))
    assert found.why == "78.0 GiB needed with this allocation; median of the other ranks so far 78.0 GiB"


def test_rank_failing_far_above_other_failures_has_an_imbalance() -> None:
    small = notice(allocated_bytes=50 * GIB, reserved_bytes=52 * GIB)
    found = found_in(view((0, FULL), (1, small), (2, small), (3, small)))
    assert (found.cause, found.evidence["others_needed_bytes_median"]) == ("memory_imbalance", 54 * GIB)


def test_failed_rank_with_unknown_bytes_is_not_compared_with() -> None:
    unknown = notice(allocated_bytes=None, reserved_bytes=None)
    assert found_in(view(*((rank, unknown if rank else FULL) for rank in range(4)))).cause == "unattributed"


def test_only_rank_of_a_run_is_full() -> None:
    alone = view((0, FULL))
    found = found_in(dataclasses.replace(alone, series=dataclasses.replace(alone.series, ranks=(0,))))
    assert found.cause == "memory_full"
    assert found.why == "78.0 GiB needed with this allocation"
    assert find_cause(notice(allocated_bytes=None), None, is_alone=True) == "unattributed"


def test_what_tensors_were_for_is_said() -> None:
    kinds = {"parameters_bytes": 14 * GIB, "gradients_bytes": 14 * GIB, "optimizer_state_bytes": 28 * GIB}
    found = found_in(view((2, notice(**kinds))))
    assert found.also[-1] == (
        "parameters 14.0 GiB, gradients 14.0 GiB, optimizer state 28.0 GiB, activations and all else 18.0 GiB"
    )
    assert {name: found.evidence[name] for name in (*kinds, "other_tensors_bytes")} == {
        **kinds, "other_tensors_bytes": 18 * GIB,
    }  # fmt: skip
    of_another_allocator = notice(**kinds, allocated_bytes=None)
    assert found_in(view((2, of_another_allocator))).also[-1].endswith("optimizer state 28.0 GiB")


def test_repeated_error_is_counted() -> None:
    found = found_in(view((2, FULL), (2, notice(number=7, step=None))))
    assert found.what == "out of GPU memory, error 7 of its process"
    assert found.since_step is None


def test_finding_closes_after_five_minutes_with_steps_since() -> None:
    def is_open(**known: int) -> bool:
        return find(view((2, FULL), **known)) is not None  # type: ignore[arg-type]

    later_ns = QUIET_NS + 2  # it came at 2 ns
    assert is_open(now_ns=later_ns - 1, steps=STEPS + 9)
    assert not is_open(now_ns=later_ns, steps=STEPS + 1)
    assert is_open(now_ns=later_ns, steps=STEPS)


def test_error_before_any_step_is_open_until_one_has_ended() -> None:
    late = view((2, FULL), now_ns=QUIET_NS + 2, after_step=None)
    assert find(late) is None
    no_steps = dataclasses.replace(late, series=NO_STEPS)
    assert find(no_steps) is not None


def test_open_finding_that_is_not_found_again_has_passed() -> None:
    known = msgspec.structs.replace(found_in(view((2, FULL))), number=4)
    (result,) = detect(dataclasses.replace(view(), open_findings=[known]), [DETECTOR]).results
    assert (result.passed, result.candidates) == ((4,), ())


def test_what_held_the_memory_is_named_by_line_of_the_script() -> None:
    script = StackFrame("/me/model.py", 24, "forward")
    library = StackFrame("/env/site-packages/torch/nn/linear.py", 125, "forward")
    held = (
        HeldMemory(bytes=40 * GIB, blocks=12, frames=(library, script)),
        HeldMemory(bytes=2 * GIB, blocks=1, frames=(library,)),
        HeldMemory(bytes=GIB, blocks=3),
    )
    assert found_in(view((2, notice(held=held)))).details == {
        "held": "40.0 GiB in 12 blocks, model.py:24 (forward); 2.0 GiB in 1 block, linear.py:125 (forward); "
        "1.0 GiB in 3 blocks, a place that torch did not record"
    }


def test_what_was_read_at_the_first_error_is_said_of_a_later_one() -> None:
    kinds = {"parameters_bytes": 14 * GIB, "gradients_bytes": 14 * GIB, "optimizer_state_bytes": 28 * GIB}
    read = notice(**kinds, allocated_bytes=70 * GIB, held=(HeldMemory(bytes=GIB, blocks=3),))
    found = found_in(view((2, read), (2, notice(number=7))))
    assert any(text.startswith("at its first error parameters 14.0 GiB, gradients 14.0") for text in found.also)
    assert found.evidence["allocated_bytes"] == 74 * GIB
    assert found.evidence["other_tensors_bytes"] == (70 - 14 - 14 - 28) * GIB
    assert found.details == {"held": "1.0 GiB in 3 blocks, a place that torch did not record"}


def test_headroom_counts_what_torch_has_reserved_and_not_used() -> None:
    device = DeviceSample(host_ns=0, uuid="GPU", memory_used_bytes=70, memory_total_bytes=80)
    torch = AllocatorSample(host_ns=0, reserved_bytes=60, allocated_bytes=45)
    assert find_device_headroom(device, torch) == 80 - 70 + 60 - 45
    assert find_device_headroom(device, AllocatorSample(host_ns=0, reserved_bytes=60)) == 10
    assert find_device_headroom(device, None) == 10
    assert find_device_headroom(msgspec.structs.replace(device, memory_used_bytes=None), torch) is None
    assert find_device_headroom(None, torch) is None


def test_largest_piece_and_the_snapshot_are_said() -> None:
    held = (HeldMemory(bytes=GIB, blocks=3, frames=(StackFrame("/me/model.py", 24, "forward"),), module="Attention"),)
    path = "/captures/bert/out-of-memory/rank-2-1.pickle"
    short = notice(allocated_bytes=66 * GIB, held=held, largest_free_bytes=3 * GIB, snapshot=path)
    found = found_in(view((2, short)))
    assert found.cause == "fragmentation"  # 10 GiB unused, 4 asked for
    assert found.why.endswith("of a CUDA graph (the largest piece 3.0 GiB)")
    assert found.also[2:] == (
        "largest: 1.0 GiB in 3 blocks, model.py:24 (forward), Attention",
        f"memory snapshot on n1: {path}",
    )
    assert found.details["snapshot"] == path
    assert found.evidence["largest_free_bytes"] == 3 * GIB
