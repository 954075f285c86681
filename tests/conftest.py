"""Configure all tests."""

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The test machine is shared and slow at times: an example has no deadline of its own, the test has (pytest's timeout).
# A failure prints the blob that reproduces it.
settings.register_profile("rankscope", deadline=None, print_blob=True)
settings.load_profile("rankscope")

# Tests set what they need. A developer's own settings must not change their results, in this process or a child of it.
for _name in [name for name in os.environ if name.startswith("RANKSCOPE")]:
    del os.environ[_name]

# Buffer output as Python does by default: unbuffered, output that cannot be written never reaches the flush at exit.
os.environ.pop("PYTHONUNBUFFERED", None)

# Let each job's processes keep the bytecode of our own modules, as they do by default: to compile them anew costs each
# of the thousand processes 0.1 to 0.6 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what it runs in the background with SIGINT ignored, and its children inherit that: Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Search for no garbage while tests are imported, and not among what stays to the end: the collection of tests/unit took
# 23 s of a core with it and takes 13 s without.
gc.disable()


# jsonschema compiles grammars of addresses when it is imported, for a format that no schema of ours has: 1.4 s of each
# process that collects tests. Without this module it does not know that format.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

MARKS_REST = "mark.rest"


@functools.cache
def may_be_marked(path: Path) -> bool:
    """Whether a file of tests marks one of them as `rest`, or the conftest.py beside it does."""
    texts = [one.read_text(encoding="utf-8") for one in (path, path.with_name("conftest.py")) if one.exists()]
    return any(MARKS_REST in text for text in texts)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file for `-m rest` that has none of it: to import all of them takes half a minute of each worker."""
    is_file = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
    return True if config.option.markexpr == "rest" and is_file and not may_be_marked(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse to leave a test out of `make test` without a reason, or by a mark that `-m rest` would not look for."""
    left_out = [(item, mark) for item in items for mark in item.iter_markers("rest")]
    unfounded = [item.nodeid for item, mark in left_out if not mark.args]
    if unfounded:
        raise pytest.UsageError(f'say why make test leaves it out, as @pytest.mark.rest("...") does: {unfounded[0]}')
    unseen = [item.nodeid for item, _ in left_out if not may_be_marked(item.path)]
    if unseen:
        raise pytest.UsageError(f"write {MARKS_REST} in its file or in the conftest.py beside it: {unseen[0]}")


def pytest_collection_finish() -> None:
    """Collect garbage from now on, among what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()
