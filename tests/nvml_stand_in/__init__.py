"""A libnvidia-ml.so.1 of our own, so that the real pynvml runs on a machine without a GPU. nvml.c says what it does."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
COMPILE_TIMEOUT_S = 60


def compile_nvml(directory: Path, *, old_driver: bool = False) -> Path:
    """Compile the stand-in into `directory` and return the library.

    `directory` in LD_LIBRARY_PATH makes a new process load it. Raises RuntimeError, saying the cure, without gcc and
    when gcc refuses the source: a test that needs the library then fails, where a skip would hide what is not tested.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        message = f"gcc is not on PATH, so {SOURCE.name} cannot be compiled; install it (apt-get install gcc libc6-dev)"
        raise RuntimeError(message)
    library = directory / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror"] + ["-DOLD_DRIVER"] * old_driver
    command = [compiler, *options, "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        message = f"gcc returned {done.returncode} for {SOURCE.name}:\n{done.stderr}"
        raise RuntimeError(message)
    return library
