"""What starting the agent leaves as it was."""

import contextlib
import gc

import pytest

from rankscope.agent import launch


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_before_after_the_imports_also_when_they_fail(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with contextlib.suppress(ImportError), launch._without_collections():
            assert not gc.isenabled()
            raise ImportError("no torch here")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
