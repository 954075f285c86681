"""Write the files that options name, and look first whether they can be written: by one rule, in the same words."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rankscope.measure.errors import UnavailableError


def check_place(path: str | Path, option: str) -> None:
    """Raise UnavailableError where the file that an option names is a folder, or in none, or this user may not write
    it: before a work of minutes. Nothing is opened, which a reader of a pipe would see, and nothing is made.
    """
    path = Path(path)
    problem = ""
    if path.is_dir():
        problem = "it is a folder"
    elif not path.parent.is_dir():
        problem = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = f"this user may not write {'it' if path.exists() else f'in {path.parent}'}"
    if problem:
        raise UnavailableError(describe_unwritable(path, option, problem))


def describe_unwritable(path: str | Path, option: str, problem: str) -> str:
    """Return the sentence about the file that an option names and that cannot be written."""
    return f"{path} (from {option}) cannot be written: {problem}. Name another file."


def write_output(path: str | Path, option: str, content: bytes) -> None:
    """Write the file that an option names. Raises UnavailableError."""
    with _naming(path, option):
        Path(path).write_bytes(content)


def write_whole(path: str | Path, option: str, text: str) -> None:
    """Replace the file that an option names as a whole: who reads it meanwhile gets the old or the new one. A pipe or
    a device is written into, as is a file in a folder where this user may make none. Raises UnavailableError.
    """
    with _naming(path, option):
        target = Path(path).resolve()
        if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK | os.X_OK)):
            target.write_text(text, encoding="utf-8")
            return
        partial: Path | None = None
        try:
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
            ) as file:
                partial = Path(file.name)
                file.write(text)
            partial.chmod(0o644)
            partial.replace(target)
        except OSError:
            if partial is not None:
                with contextlib.suppress(OSError):
                    partial.unlink()
            raise


@contextlib.contextmanager
def _naming(path: str | Path, option: str) -> Iterator[None]:
    """Raise an OSError inside as UnavailableError with the file and the option that names it."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(describe_unwritable(path, option, error.strerror or str(error))) from error
