"""Build the source distribution and the wheel of a commit so that the same commit gives the same bytes.

    python deploy/dist.py [--out dist] [--commit HEAD]

What is built is the commit, not the working tree. Every time in both files is the commit's (SOURCE_DATE_EPOCH of
https://reproducible-builds.org/specs/source-date-epoch/), every owner is nobody, modes are 644 and 755, names sorted.
The wheel is built from the unpacked source distribution, so that one can be checked against the other. The same bytes
come out with the same setuptools, whose release is printed and stands in the wheel.
"""

import argparse
import gzip
import hashlib
import importlib.metadata
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODE, MODE_OF_PROGRAMS = 0o644, 0o755
COMPRESSION = 9


def parse_options(description: str, arguments: list[str] | None) -> argparse.Namespace:
    """Return `out`, a folder that is there, and `commit`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="where it goes [dist]")
    parser.add_argument("--commit", default="HEAD", help="what is built [HEAD]")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def report_failure(program: str, error: subprocess.CalledProcessError) -> int:
    """Print which command failed, and why; return the exit status."""
    command = " ".join(map(str, error.cmd))
    print(f"{program}: {command} failed: {error.stderr.decode(errors='replace').strip()}", file=sys.stderr)
    return 1


def main(arguments: list[str] | None = None) -> int:
    """Build both and print their SHA-256; 1 if that fails."""
    options = parse_options("Build the source distribution and the wheel reproducibly.", arguments)
    try:
        built = build(options.commit, options.out)
    except subprocess.CalledProcessError as error:
        return report_failure("dist", error)
    print(f"commit {run_git('rev-parse', options.commit)}, setuptools {importlib.metadata.version('setuptools')}")
    for path in built:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    return 0


def build(commit: str, out: Path) -> list[Path]:
    """The source distribution and the wheel of `commit`, written into `out`.

    Raises CalledProcessError if git or the build backend fails; its `stderr` says why.
    """
    epoch_s = read_epoch_s(commit)
    with tempfile.TemporaryDirectory(prefix="rankscope-dist-") as temporary:
        folder = Path(temporary)
        tree = unpack_commit(commit, folder / "tree")
        (made,) = _run_backend("--sdist", tree, folder / "sdist", epoch_s)
        sdist = out / made.name
        with tarfile.open(made) as archive:
            sdist.write_bytes(even_out(archive, epoch_s))
        with tarfile.open(sdist) as archive:
            _extract(archive, folder / "unpacked")
        (source,) = (folder / "unpacked").iterdir()
        (made,) = _run_backend("--wheel", source, folder / "wheel", epoch_s)
        wheel = out / made.name
        wheel.write_bytes(made.read_bytes())
    return [sdist, wheel]


def read_epoch_s(commit: str) -> int:
    """Return the time of a commit, in seconds since 1970. Raises CalledProcessError where there is no such commit."""
    return int(run_git("log", "-1", "--format=%ct", commit))


def run_git(*arguments: str) -> str:
    """Return what git prints in this repository. Raises CalledProcessError if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)  # noqa: S607 - the user's git
    return done.stdout.decode().strip()


def unpack_commit(commit: str, folder: Path) -> Path:
    """Return the folder with the files of a commit in it. Raises CalledProcessError if git fails."""
    command = ["git", "-c", "tar.umask=0022", "archive", "--format=tar", commit]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        _extract(archive, folder)
    return folder


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive of our own making. Python before 3.10.12 and 3.11.4 (Debian 12: 3.11.2) knows no filters."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)  # noqa: S202 - made by git and by the lines above


def _run_backend(kind: str, tree: Path, out: Path, epoch_s: int) -> list[Path]:
    """Without isolation, which would fetch whatever setuptools is newest at that hour."""
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out), str(tree)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s), "PYTHONHASHSEED": "0"}
    # What the backend writes by itself takes its mode from the umask of whoever builds.
    subprocess.run(command, capture_output=True, check=True, env=environment, umask=0o022)
    return list(out.iterdir())


def even_out(archive: tarfile.TarFile, epoch_s: int, rename: Callable[[str], str | None] = lambda name: name) -> bytes:
    """The archive with times, owners, modes and order that do not depend on who packed it, and when. `rename` gives
    the name of each member in it; None leaves the member out. Exits with the reason where a member is neither a file
    nor a folder: who unpacks a release elsewhere need not have what a link points to.
    """
    named = [(rename(member.name), member) for member in archive.getmembers()]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for name, member in sorted(((name, one) for name, one in named if name), key=lambda one: one[0]):
            if not (member.isfile() or member.isdir()):
                points = f"a link to {member.linkname}" if member.linkname else "neither a file nor a folder"
                sys.exit(f"dist: {member.name} is {points}; an archive of a release has only files and folders in it")
            is_program = member.isdir() or bool(member.mode & 0o100)
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.mtime = member.type, member.size, epoch_s
            entry.mode = MODE_OF_PROGRAMS if is_program else MODE
            new.addfile(entry, archive.extractfile(member) if member.isfile() else None)
    return gzip.compress(packed.getvalue(), COMPRESSION, mtime=epoch_s)


if __name__ == "__main__":
    sys.exit(main())
