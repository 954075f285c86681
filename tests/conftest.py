"""Configure all tests."""

import gc
import os
import signal

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse to leave a test out of `make test` without a reason."""
    unfounded = [item.nodeid for item in items for mark in item.iter_markers("rest") if not mark.args]
    if unfounded:
        raise pytest.UsageError(f'say why make test leaves it out, as @pytest.mark.rest("...") does: {unfounded[0]}')


def pytest_collection_finish() -> None:
    """Collect garbage from now on, among what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()
