"""`rankscope files`: list and copy the documentation, configurations and deployment files of this release."""

import argparse
import fnmatch
import glob
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankscope.measure.errors import SettingError, UnavailableError

PACKAGE: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("configs", "deploy", "docs")
SHIPPED: Final = "shipped"
"""The folder of an installation that has these folders: the package data of rankscope.shipped in pyproject.toml, which
is the only list of what is shipped.
"""


class Files:
    """List the files of this release, or copy them into a folder."""

    name = "files"
    summary = "list or copy the docs, configurations and deployment files"
    example = """\
rankscope files --list 'docs/*'            the documentation of this release
rankscope files --copy . 'deploy/grafana/*'"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the action and the pattern."""
        action = parser.add_mutually_exclusive_group(required=True)
        action.add_argument("--list", action="store_true", help="print the names")
        action.add_argument(
            "--copy", type=Path, metavar="FOLDER", help="copy the files into this folder; existing files are kept"
        )
        parser.add_argument(
            "pattern",
            nargs="?",
            default="*",
            metavar="PATTERN",
            help="only files that match, for example 'deploy/grafana/*' in quotes [all]",
        )

    def run(self, options: argparse.Namespace) -> int:
        """List or copy the files that match; return 1 if an existing file differs and was kept, else 0."""
        root = find_root(PACKAGE)
        names = find_names(root, options.pattern)
        if options.copy is not None:
            return copy_files(root, names, options.copy)
        for name in names:
            print(name)
        return 0


def find_root(package: Path) -> Path:
    """Return the folder with the files: `shipped` in an installation, the checkout itself in an editable one."""
    for root in (package / SHIPPED, package):
        if all((root / folder).is_dir() for folder in FOLDERS):
            return root
    raise UnavailableError(
        f"{package} has no {', '.join(FOLDERS)}: this installation came without its files. Install the wheel again."
    )


def find_names(root: Path, pattern: str) -> list[str]:
    """Return the sorted names, relative to `root`, that match `pattern`; raise SettingError for no match."""
    patterns = [f"{folder}/**" for folder in FOLDERS] if root.name == SHIPPED else _read_patterns()
    # Not Path.glob, which follows no links before Python 3.13: the chart has links to folders of rules and dashboards.
    found = {name for one in patterns for name in glob.iglob(one, root_dir=root, recursive=True)}  # noqa: PTH207
    names = sorted(Path(name).as_posix() for name in found if (root / name).is_file())
    matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matching:
        raise SettingError(f"No file matches {pattern!r}. `rankscope files --list` prints all {len(names)}.")
    return matching


def _read_patterns() -> list[str]:
    """Return the patterns of what is shipped, of the checkout that this is: it has other files too, also keys that
    somebody made.
    """
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - only a checkout needs the parser
    else:
        import tomli as tomllib  # noqa: PLC0415
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))
    patterns: list[str] = project["tool"]["setuptools"]["package-data"]["rankscope.shipped"]
    return patterns


def copy_files(root: Path, names: Sequence[str], folder: Path) -> int:
    """Copy `names` into `folder`; return 1 if an existing file differs, which is then kept."""
    status = 0
    for name in names:
        target = folder / name
        try:
            if not target.exists() and not target.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy_whole(root / name, target)
                print(f"wrote {target}")
            elif target.read_bytes() != (root / name).read_bytes():
                print(f"rankscope: {target} differs and was kept: move it away to get this release's", file=sys.stderr)
                status = 1
        except OSError as error:
            raise UnavailableError(f"{target} cannot be written: {error.strerror}. Name another folder.") from error
    return status


def _copy_whole(source: Path, target: Path) -> None:
    """Copy a file, and remove what was written when that fails: the next try would find a file that differs."""
    try:
        shutil.copy(source, target)  # a script stays one that can be run
    except OSError:
        target.unlink(missing_ok=True)
        raise
