"""RunCompilations: what was compiled on all ranks, and what is said of it."""

from rankscope.collector.runs.compilations import FRAMES_KEPT_MAX, NOTHING_COMPILED, describe_compilations
from rankscope.measure.records import NO_COMPILATIONS, Compilations, CompiledFrame, CompiledStart
from rankscope.measure.units import NS_PER_MS as MS
from rankscope.measure.units import NS_PER_S as S

FORWARD = "train.py:24 (forward)"


def start(compile_s: int, last_step: int = 3) -> CompiledStart:
    return CompiledStart(last_step=last_step, elapsed_ns=51 * S, compile_ns=compile_s * S, frames=9)


def again(step: int, ms: int, reason: str = "k == 4", **fields: bool) -> CompiledFrame:
    return CompiledFrame(
        step=step, frame=FORWARD, compiled=1, recompiled=1, duration_ns=ms * MS, reason=reason, **fields
    )


def test_start_is_that_of_the_rank_that_spent_the_most() -> None:
    seen = NOTHING_COMPILED
    for rank, spent_s in ((0, 30), (2, 38), (1, 31)):
        seen = seen.add(rank, Compilations(start=start(spent_s)))
    assert (seen.rank, seen.start) == (2, start(38))
    assert describe_compilations(seen) == ["38.0 s of the 51.0 s until the end of step 3 on rank 2: 9 frames"]


def test_frames_of_all_ranks_are_added_and_the_longest_is_named() -> None:
    seen = NOTHING_COMPILED.add(0, Compilations(frames=(again(10, 200), again(20, 300, "k == 5"))))
    seen = seen.add(1, Compilations(frames=(again(30, 400, "k == 6"),)))
    (frame,) = seen.frames
    assert (frame.compiled, frame.recompiled, frame.duration_ns, frame.again_ns) == (3, 3, 900 * MS, 900 * MS)
    assert (frame.longest_rank, frame.longest_step, frame.reason) == (1, 30, "k == 6")
    assert describe_compilations(seen) == [
        f"again 3 times on all ranks together, 900.0 ms: most for {FORWARD}, the guard k == 6 failed"
    ]


def test_first_compilation_of_a_frame_is_not_again() -> None:
    first = CompiledFrame(step=0, frame=FORWARD, compiled=1, duration_ns=S)
    seen = NOTHING_COMPILED.add(0, Compilations(frames=(first, again(7, 50))))
    assert seen.frames[0].again_ns == 50 * MS


def test_frame_that_torch_gives_up_is_said() -> None:
    seen = NOTHING_COMPILED.add(0, Compilations(frames=(again(7, 50, gives_up=True),)))
    assert describe_compilations(seen)[-1] == f"torch has reached its limit, and runs {FORWARD} uncompiled"


def test_report_without_news_changes_nothing() -> None:
    seen = NOTHING_COMPILED.add(0, Compilations(start=start(3), frames=(again(7, 50),)))
    assert seen.add(1, NO_COMPILATIONS) is seen
    assert seen.add(0, Compilations(start=start(3))).frames is not None
    assert describe_compilations(NOTHING_COMPILED) == []


def test_frames_beyond_the_limit_are_counted() -> None:
    many = tuple(CompiledFrame(step=1, frame=f"f{place}", compiled=1) for place in range(FRAMES_KEPT_MAX + 2))
    seen = NOTHING_COMPILED.add(0, Compilations(frames=many[:FRAMES_KEPT_MAX])).add(
        0, Compilations(frames=many[FRAMES_KEPT_MAX:])
    )
    seen.validate()
    assert (len(seen.frames), seen.left_out) == (FRAMES_KEPT_MAX, 2)
