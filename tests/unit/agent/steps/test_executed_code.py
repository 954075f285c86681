"""Code that is kept after it was executed."""

import gc
import weakref

from rankscope.agent.steps.executed_code import EXECUTED_KEPT, keep_executed_code


def test_the_latest_code_that_was_executed_is_kept() -> None:
    kept = keep_executed_code()
    assert keep_executed_code() is kept  # one hook, which cannot be removed
    first, last = compile("1", "first.py", "exec"), compile("1 + 1", "last.py", "eval")
    found = weakref.ref(first)
    exec(first)  # noqa: S102 - what is tested
    eval(last)  # noqa: S307 - what is tested
    del first
    assert found() is kept[-2]
    assert kept[-1] is last
    for _ in range(EXECUTED_KEPT):
        exec("")  # noqa: S102 - what is tested
    gc.collect()
    assert (found(), len(kept)) == (None, EXECUTED_KEPT)
