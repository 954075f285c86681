"""Read a GPU by `nvidia-smi`, to compare it with NVML's Python binding."""

import shutil
import subprocess

COLUMNS = (
    "uuid", "name", "driver_version", "memory.total", "memory.used", "power.draw", "enforced.power.limit",
    "temperature.gpu", "clocks.sm", "clocks.mem", "utilization.gpu",
)  # fmt: skip
ANSWER_S_MAX = 60.0


def find_nvidia_smi() -> str | None:
    """Return the path of nvidia-smi; None when there is none."""
    return shutil.which("nvidia-smi")


def parse_answer(text: str) -> dict[str, float | str | None]:
    """One line of `--format=csv,noheader,nounits` by column; None for values that the GPU does not have.

    >>> line = "GPU-1, NVIDIA H200, 570.1, 143771, 512, 75.90, 700.00, 28, 345, [N/A], 0"
    >>> [parse_answer(line)[name] for name in ("name", "memory.total", "clocks.mem")]
    ['NVIDIA H200', 143771.0, None]
    """
    texts = [part.strip() for part in text.strip().split(",")]
    if len(texts) != len(COLUMNS):
        raise ValueError(f"nvidia-smi gave {len(texts)} columns where {len(COLUMNS)} were asked for: {text!r}")
    found: dict[str, float | str | None] = {}
    for name, answer in zip(COLUMNS, texts, strict=True):
        try:
            found[name] = float(answer)
        except ValueError:
            found[name] = None if answer.startswith("[") else answer
    return found


def read_gpu(uuid: str) -> dict[str, float | str | None]:
    """The GPU with this UUID now, in nvidia-smi's units: MiB, W, degrees Celsius, MHz, percent.

    Raises CalledProcessError with its output when nvidia-smi does not answer.
    """
    command = find_nvidia_smi() or "nvidia-smi"
    options = [f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader,nounits", f"--id={uuid}"]
    done = subprocess.run([command, *options], capture_output=True, text=True, timeout=ANSWER_S_MAX, check=True)
    return parse_answer(done.stdout)
