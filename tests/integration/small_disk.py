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
