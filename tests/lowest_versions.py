"""The oldest version of each package that pyproject.toml asks for, as a file of constraints for pip:

    python -m tests.lowest_versions > lowest.txt

Of what the package needs and of what its extras do. What only the tests use is as in constraints.txt.
"""

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DRIVER_OF_S3FS: Final = {"aiobotocore": "2.5.4", "boto3": "1.28.17", "botocore": "1.31.17"}
"""Driver of the oldest s3fs: without a pin pip tries hundreds of combinations."""

_AT_LEAST: Final = re.compile(r'"([a-z0-9-]+)>=([0-9.]+)')


def read_lowest() -> dict[str, str]:
    """Return the lowest versions by package. Parsed as text, since Python 3.10 has no TOML reader."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(_AT_LEAST.findall(text[text.index("\ndependencies = [") : text.index("\ntest = [")]))


def render() -> str:
    """Return the file."""
    pinned = {**read_lowest(), **DRIVER_OF_S3FS}
    usual = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    others = [line for line in usual if "==" in line and line.partition("==")[0] not in pinned]
    return "\n".join([*(f"{name}=={version}" for name, version in pinned.items()), *others, ""])


if __name__ == "__main__":
    sys.stdout.write(render())
