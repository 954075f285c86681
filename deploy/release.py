"""Build all that a release consists of, from a commit, so that the same commit gives the same bytes.

    python -m deploy.release [--out dist] [--commit HEAD]

- the wheel and the source distribution (`deploy/dist.py`);
- `rankscope-VERSION-docker-context.tar.gz`, from which Docker builds the images:
  `docker build -f deploy/docker/Dockerfile.collector -t rankscope-collector:VERSION - < FILE`. It has the files of the
  source distribution. The image itself is not built here: it needs a base image from a registry;
- `NAME-VERSION.tgz` of each Helm chart in `deploy/helm`, if there is one;
- `rankscope-VERSION.cdx.json`, a CycloneDX 1.6 bill of materials with licenses, written by cyclonedx-py: the packages
  that the collector's image has in Python, at the releases of `deploy/docker/requirements.txt`. Those of the wheel are
  among them. It is made of an environment in which they are installed, so pip must reach a package index;
- `SHA256SUMS` of these, for `sha256sum --check`.

The bytes depend on the releases of setuptools and cyclonedx-py, which are printed.
"""

import hashlib
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from typing import Final

from deploy.dist import build, even_out, parse_options, read_epoch_s, report_failure, run_git, unpack_commit

CHARTS: Final = "deploy/helm"
REQUIREMENTS: Final = "deploy/docker/requirements.txt"
SUMS: Final = "SHA256SUMS"
TOOLS: Final = ("setuptools", "cyclonedx-bom")


def main(arguments: list[str] | None = None) -> int:
    """Build the release and print its SHA-256; 1 if that fails."""
    options = parse_options("Build what a release consists of, reproducibly.", arguments)
    try:
        sums = release(options.commit, options.out)
    except subprocess.CalledProcessError as error:
        return report_failure("release", error)
    tools = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in TOOLS)
    print(f"commit {run_git('rev-parse', options.commit)}, {tools}")
    print(sums.read_text(encoding="utf-8"), end="")
    return 0


def release(commit: str, out: Path) -> Path:
    """Write all files of the release into `out`; the file with their checksums is returned.

    Raises CalledProcessError if git, the build backend, pip or cyclonedx-py fails; its `stderr` says why.
    """
    epoch_s = read_epoch_s(commit)
    sdist, wheel = build(commit, out)
    made = [
        sdist,
        wheel,
        build_docker_context(sdist, out, epoch_s),
        *build_charts(commit, out, epoch_s),
        write_materials(commit, wheel, out, epoch_s),
    ]
    sums = out / SUMS
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made)]
    sums.write_text("".join(lines), encoding="utf-8")
    return sums


def build_docker_context(sdist: Path, out: Path, epoch_s: int) -> Path:
    """Return the archive that `docker build -` reads: the source distribution without its outermost folder."""
    context = out / sdist.name.replace(".tar.gz", "-docker-context.tar.gz")
    with tarfile.open(sdist) as archive:
        context.write_bytes(even_out(archive, epoch_s, lambda name: name.partition("/")[2] or None))
    return context


def build_charts(commit: str, out: Path, epoch_s: int) -> list[Path]:
    """Return the packed charts, NAME-VERSION.tgz with a folder named after the chart in it. As `helm package` does, a
    link is packed as the files that it points to in the commit.
    """
    charts = []
    with tempfile.TemporaryDirectory(prefix="rankscope-charts-") as temporary:
        tree = unpack_commit(commit, Path(temporary))
        for described in sorted((tree / CHARTS).rglob("Chart.yaml")):
            text, where = described.read_text(encoding="utf-8"), described.relative_to(tree).as_posix()
            chart, version = (_find_field(text, field, where) for field in ("name", "version"))
            packed = out / f"{chart}-{version}.tgz"
            packed.write_bytes(_pack_with_linked(described.parent, chart, epoch_s))
            charts.append(packed)
    return charts


def _pack_with_linked(folder: Path, name: str, epoch_s: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        archive.add(folder, arcname=name)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        return even_out(archive, epoch_s)


def _find_field(text: str, field: str, where: str) -> str:
    found = re.search(rf"^{field}: *['\"]?([\w.+-]+)", text, re.MULTILINE)
    if found is None:
        sys.exit(f"release: {where} has no {field} at the start of a line; Helm requires one")
    return found[1]


def write_materials(commit: str, wheel: Path, out: Path, epoch_s: int) -> Path:
    """Return the bill of materials of an environment with the wheel and the releases that the image has."""
    materials = out / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="rankscope-release-") as temporary:
        tree = unpack_commit(commit, Path(temporary, "tree"))
        environment = Path(temporary, "environment")
        venv.create(environment)  # without pip, which is no part of what is described
        pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
        install = [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        _run(*install, "--requirement", str(tree / REQUIREMENTS))
        _run(*install, "--no-deps", str(wheel))
        _run(*pip, "check")
        cyclonedx = [sys.executable, "-m", "cyclonedx_py", "environment", str(environment), "--output-reproducible"]
        options = [
            "--spec-version",
            "1.6",
            "--pyproject",
            str(tree / "pyproject.toml"),
            "--output-file",
            str(materials),
        ]
        _run(*cyclonedx, *options, SOURCE_DATE_EPOCH=str(epoch_s))
    return materials


def _run(*command: str, **variables: str) -> None:
    subprocess.run(command, capture_output=True, check=True, env={**os.environ, **variables})


if __name__ == "__main__":
    sys.exit(main())
