"""Look whether the file of an option can be written, before a work of minutes. Nothing is opened or made."""

from pathlib import Path

from rankscope.measure.errors import UnavailableError


def check_place(path: Path, option: str) -> None:
    """Raise UnavailableError where the file that an option names is a folder, or in none."""
    if path.is_dir():
        raise UnavailableError(f"{path} (from {option}) cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise UnavailableError(f"{path} (from {option}) cannot be written: there is no folder {path.parent}")
