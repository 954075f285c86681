"""`rankscope files`: list and copy the documentation, configurations and deployment files of this release."""

import argparse
import fnmatch
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankscope.measure.errors import SettingError, UnavailableError

FOLDERS: Final = ("configs", "deploy", "docs")
KINDS: Final = frozenset(
    {".collector", ".json", ".md", ".png", ".sbatch", ".service", ".svg", ".tmpl", ".toml", ".tpl", ".training"}
    | {".txt", ".yaml", ".yml"}
)
"""File name endings of the package data in pyproject.toml. Keys have none of them."""


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
        root = find_root(Path(__file__).resolve().parents[2])
        names = find_names(root, options.pattern)
        if options.copy is not None:
            return copy_files(root, names, options.copy)
        for name in names:
            print(name)
        return 0


def find_root(package: Path) -> Path:
    """Return the folder with the files: `shipped` in an installation, the checkout itself in an editable one."""
    for root in (package / "shipped", package):
        if all((root / folder).is_dir() for folder in FOLDERS):
            return root
    raise UnavailableError(
        f"{package} has no {', '.join(FOLDERS)}: this installation came without its files. Install the wheel again."
    )


def find_names(root: Path, pattern: str) -> list[str]:
    """Return the sorted names, relative to `root`, that match `pattern`; raise SettingError for no match."""
    # The chart has links to folders of rules and dashboards; a wheel has files there.
    walks = [os.walk(root / folder, followlinks=True) for folder in FOLDERS]
    found = [Path(folder, name) for walk in walks for folder, _, files in walk for name in files]
    names = sorted(path.relative_to(root).as_posix() for path in found if path.suffix in KINDS)
    matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matching:
        raise SettingError(f"No file matches {pattern!r}. `rankscope files --list` prints all {len(names)}.")
    return matching


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
        shutil.copyfile(source, target)
    except OSError:
        target.unlink(missing_ok=True)
        raise
