"""Jobs on the fake GPU, with the settings that all of them share."""

import functools
import tempfile
from pathlib import Path

from tests.fake_gpu import compile_device
from tests.integration.torchrun import CHECKOUT, OFTEN


@functools.cache
def find_library() -> str:
    """Return the device's library, compiled once per process that tests."""
    return str(compile_device(Path(tempfile.mkdtemp(prefix="fake_gpu-"))))


def settings(endpoint: str, **more: str) -> dict[str, str]:
    """Return the environment of a job: reports to `endpoint`, windows often and without regard to their effect."""
    given = {
        **OFTEN, "RANKSCOPE_COLLECTOR": endpoint, "PYTHONPATH": CHECKOUT, "RANKSCOPE_GPU": "false",
        "RANKSCOPE_DEVICE_WINDOWS": "always",
    }  # fmt: skip
    return {**given, **{f"RANKSCOPE_{name.upper()}": value for name, value in more.items()}}
