"""How long ranks compile in given steps, beside their peers."""

from rankscope.collector.detect.stragglers.recompilation import (
    compare_compilation,
    describe_compilation,
    measure_compilation,
)
from rankscope.measure.records import CompiledFrame
from rankscope.measure.units import NS_PER_MS as MS

SCALE, LOSS = "train.py:24 (scale)", "train.py:60 (loss)"


def compiled(step: int, ms: int, frame: str = SCALE, reason: str = "") -> CompiledFrame:
    return CompiledFrame(step=step, frame=frame, compiled=1, duration_ns=ms * MS, reason=reason)


def test_time_in_a_step_is_the_median_of_the_steps() -> None:
    frames = {1: [compiled(10, 100), compiled(20, 100), compiled(20, 40, LOSS), compiled(30, 90)]}
    assert measure_compilation(frames, 1, {10, 20, 30}) == 100 * MS
    assert measure_compilation(frames, 1, {10, 20, 30, 31, 32, 33, 34}) == 0.0


def test_no_compilation_is_zero_time_and_no_word_of_it_unknown() -> None:
    assert measure_compilation({1: []}, 1, {10}) == 0.0
    assert measure_compilation({1: None}, 1, {10}) is None
    assert measure_compilation({}, 1, {10}) is None
    assert measure_compilation({1: []}, 1, ()) is None


def test_only_what_peers_do_not_compile_too_is_longer() -> None:
    frames = {0: [compiled(10, 100)], 1: [compiled(10, 130)], 2: None}
    assert compare_compilation(frames, 1, (0, 1, 2), {10}) == 30 * MS
    assert compare_compilation(frames, 1, (2,), {10}) is None
    assert compare_compilation(frames, 2, (0, 1), {10}) is None


def test_frame_with_most_time_and_its_last_guard_are_named() -> None:
    size = "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    frames = {1: [compiled(10, 100, reason="k == 3"), compiled(10, 40, LOSS), compiled(20, 100, reason=size)]}
    said = describe_compilation(120 * MS, " more per step", frames, [1], {10, 20})
    assert said == (
        f"120.0 ms more per step in torch.compile, most of it for {SCALE}: "
        "tensor 'x' size mismatch at index 0, expected 4, actual 5"
    )


def test_without_frame_or_guard_less_is_said() -> None:
    assert describe_compilation(5 * MS, "", {1: []}, [1], {10}) == "5.0 ms in torch.compile"
    assert describe_compilation(5 * MS, "", {1: [compiled(10, 5)]}, [1], {10}).endswith(f"all of it for {SCALE}")
