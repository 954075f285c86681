"""A disk that is full when a test wants it: a file system of a few MiB in memory. Needs root."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20


@contextlib.contextmanager
def mounted(folder: Path, size_mib: int) -> Iterator[Path | None]:
    """The folder, made, with a file system of that size in it until the end of the block; None where none can be
    mounted.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607 - as it is found on this machine


def with_full(*folders: str | Path) -> list[str]:
    """Begin a command for which each of the folders is a file system of 64 KiB without any room; for nobody else."""
    steps = [
        f"mount -t tmpfs -o size=64k tmpfs '{folder}' && {{ head -c 1000000 /dev/zero > '{folder}/filler'; true; }}"
        for folder in folders
    ]
    return ["unshare", "--mount", "sh", "-c", f'{{ {" && ".join(steps)}; }} 2> /dev/null && exec "$@"', "sh"]


def why_not_with_full() -> str:
    """Return why no command can be begun like that here; empty where it can."""
    try:
        tried = subprocess.run([*with_full("/dev/shm"), "true"], capture_output=True, text=True, check=False)  # noqa: S108
    except OSError as error:
        return str(error)
    return f"no file system can be mounted here: {tried.stderr}" if tried.returncode else ""


def fill(folder: Path) -> Path:
    """A file that takes all the room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (MIB, 1 << 16, 1 << 12, 1):
            while True:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    break
    return filler
