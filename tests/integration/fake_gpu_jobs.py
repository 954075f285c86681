"""Jobs on the fake GPU, with the settings that all of them share."""

import fcntl
import functools
import os
import tempfile
from pathlib import Path

from tests.fake_gpu import compile_device
from tests.integration.torchrun import CHECKOUT, OFTEN


@functools.cache
def find_library() -> str:
    """Return the device's library. All workers of a run of pytest share one: to compile it takes 10 s of a core."""
    name = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    if not name:
        return str(compile_device(Path(tempfile.mkdtemp(prefix="fake_gpu-"))))
    folder = Path(tempfile.gettempdir(), f"fake_gpu-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / "libfake_gpu.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compile_device(Path(tempfile.mkdtemp(dir=folder))).rename(library)
    return str(library)


def settings(endpoint: str, **more: str) -> dict[str, str]:
    """Return the environment of a job: reports to `endpoint`, windows often and without regard to their effect. The job
    waits for the last acknowledgement as long as a busy machine takes, which may be more than the default of 3 s.
    """
    given = {
        **OFTEN, "RANKSCOPE_COLLECTOR": endpoint, "PYTHONPATH": CHECKOUT, "RANKSCOPE_GPU": "false",
        "RANKSCOPE_DEVICE_WINDOWS": "always", "RANKSCOPE_DRAIN_S": "60",
    }  # fmt: skip
    return {**given, **{f"RANKSCOPE_{name.upper()}": value for name, value in more.items()}}
