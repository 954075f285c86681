"""Find trace files behind paths, folders, globs and URLs, and read their inflated bytes in chunks.

Local files need no other package; `isal`, if installed, inflates about three times as fast as zlib. URLs are opened by
fsspec and the driver of their scheme.
"""

import contextlib
import glob
import importlib
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from rankscope.measure.errors import CutOffError, RankscopeError, SettingError, TraceError, UnavailableError

CHUNK_BYTES = 1 << 17
"""Bytes of a read; inflated they are 5 to 15 times as many."""
INFLATED_BYTES_MAX = 1 << 20
"""Largest chunk: still in the caches when it is decoded."""
GZIP_MAGIC = b"\x1f\x8b"
MEMBERS_MAX = 100_000
"""Members of a gzip file. Each costs a copy of what was read behind it; compressors in blocks put 64 KiB into one."""
STDIN = "/dev/stdin"
"""Path of standard input."""
ENDINGS = (".json", ".json.gz")
PROFILER_ENDINGS = (".pt.trace.json", ".pt.trace.json.gz")
Paths: TypeAlias = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]
Progress = Callable[[float, int], None]
"""Called with the number of files read so far, of a large one with its part, and of all to read."""
_RANK_IN_NAME = re.compile(
    r"(?:rank|worker|(?:^|[_.-])r)[-_.]?(\d+)(?=\D|$)|(?:^|[_.-])(?:trace[-_]|TP-)(\d{1,5})(?=\D|$)", re.IGNORECASE
)
_PACKED = re.compile(r"\.(?:zst|bz2|xz|lz4|zip|tar|tgz|tar\.gz)$", re.IGNORECASE)
_NO_RANK_IN_NAME = re.compile(r"worker-\d+_\d+\.|-(?:DP|PP|EP)-\d", re.IGNORECASE)
"""A pod and the process in it; a rank by several numbers."""


class TraceFile(NamedTuple):
    """A file to read. `named` is True when the user named the file itself, not its folder; `rank` is what the user's
    pattern finds in its path; `may_guess` is False where a number in its name is known to be no rank.
    """

    path: str
    named: bool
    rank: int | None = None
    may_guess: bool = True


def find_traces(paths: Paths) -> list[TraceFile]:
    """Return the files behind these paths, or this one, sorted, each once. Raises UnavailableError for a path without a
    file, and without any path.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    found: dict[str, TraceFile] = {}
    for path in given:
        for file in _expand(os.fspath(path)):
            _check_name(file.path)
            found.setdefault(file.path, file)
    if not found:
        raise UnavailableError("no path of a trace is given")
    return [found[path] for path in sorted(found, key=_natural)]


def _check_name(path: str) -> None:
    """Raise UnavailableError for a name that no report and no page can hold."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="backslashreplace").decode()
        raise UnavailableError(f"{shown}: its name is not UTF-8, which no report can hold: rename it") from None


def _natural(path: str) -> list[tuple[int, int | str]]:
    """Return a sort key that puts rank 2 before rank 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", path)]


def _expand(path: str) -> list[TraceFile]:
    if "://" in path and not path.startswith("file://"):
        return _expand_url(path)
    local = Path(path.removeprefix("file://"))
    if local.is_dir():
        names = [str(child) for child in local.iterdir() if child.is_file()]
        return _choose(names, f"the folder {path}", _find_inner(local) if not any(map(_is_json, names)) else ())
    if local.exists():
        return [TraceFile(str(local), named=True)]
    if any(sign in path for sign in "*?["):
        names = glob.glob(str(local), recursive=True)  # noqa: PTH207 - pathlib's takes no absolute pattern
        return _choose([name for name in names if Path(name).is_file()], path)
    raise UnavailableError(f"{path}: there is no such file or folder")


def _expand_url(path: str) -> list[TraceFile]:
    system, inner = _open_file_system(path)
    scheme = path.partition("://")[0]
    with _wrapping_errors(f"{path} cannot be listed", path):
        if any(sign in inner for sign in "*?["):
            names = system.glob(inner)
        elif system.isdir(inner):
            names = [entry["name"] for entry in system.ls(inner, detail=True) if entry["type"] == "file"]
        elif system.exists(inner):
            return [TraceFile(path, named=True)]
        else:
            raise UnavailableError(f"{path}: there is no such object or folder")
    return _choose([f"{scheme}://{name}" for name in names], path)


def _is_json(name: str) -> bool:
    return name.endswith(ENDINGS)


def _find_inner(folder: Path) -> tuple[str, ...]:
    """Return the folders directly in a folder that have files like traces, sorted: of captures, of nodes."""
    found = []
    for inner in folder.iterdir():
        with contextlib.suppress(OSError):  # a folder that may not be read
            if inner.is_dir() and any(_is_json(child.name) for child in inner.iterdir()):
                found.append(str(inner))
    return tuple(sorted(found, key=_natural))


def _choose(names: Sequence[str], where: str, inner: Sequence[str] = ()) -> list[TraceFile]:
    """Return the files named as by the profiler, else every JSON file. Raises UnavailableError without one; `inner` are
    folders where there are some.
    """
    for endings in (PROFILER_ENDINGS, ENDINGS):
        chosen = [name for name in names if name.endswith(endings)]
        if chosen:
            return [TraceFile(name, named=False) for name in chosen]
    packed = sorted(name.rpartition("/")[2] for name in names if _PACKED.search(name))
    also = f". {packed[0]} is packed in a way that is not read: unpack it first" if packed else ""
    if inner:
        also = f"{also}. Its folders have some, such as {inner[0]}: name one of them"
    raise UnavailableError(f"{where} holds no trace: no file ends in .json or .json.gz{also}")


def rank_in_name(path: str) -> int | None:
    """Return the rank in a file's name, None without one.

    >>> rank_in_name("logs/worker3.16231430.pt.trace.json.gz"), rank_in_name("job_r12.json"), rank_in_name("a.json")
    (3, 12, None)
    >>> rank_in_name("1690-TP-3.trace.json.gz"), rank_in_name("trace_0.json"), rank_in_name("worker-0_711.169.json")
    (3, 0, None)
    """
    name = path.rpartition("/")[2]
    found = None if _NO_RANK_IN_NAME.search(name) else _RANK_IN_NAME.search(name)
    return int(found[1] or found[2]) if found else None


# -- reading ----------------------------------------------------------------------------------------------------------


def watch_bytes(path: str, on_part: Callable[[float], None] | None) -> Callable[[int], None]:
    """Return what tells `on_part` how much of a local file is read, 0 to 1, from the bytes of each read."""
    with contextlib.suppress(OSError):
        size = Path(path.removeprefix("file://")).stat().st_size
        read = [0]

        def count(more: int) -> None:
            read[0] = min(read[0] + more, size)
            if on_part is not None and size:
                on_part(read[0] / size)

        return count
    return lambda _: None


def read_chunks(path: str, on_part: Callable[[float], None] | None = None) -> Iterator[bytes]:
    """Yield the bytes of a trace, inflated if their content, not the name, shows that they are compressed. `on_part` is
    told how much of the file is read.

    Raises UnavailableError when it cannot be opened or read, TraceError when the compression is broken, CutOffError at
    the end of a compressed file that ends too early.
    """
    count = watch_bytes(path, on_part)
    with _wrapping_errors("it cannot be read", path), _open(path) as opened:
        file = _Watched(opened, count)
        first = file.read(CHUNK_BYTES)
        if first[:2] == GZIP_MAGIC:
            yield from _inflate(first, file)
            return
        while first:
            yield first
            first = file.read(CHUNK_BYTES)


class _Watched:
    """A file whose reads are counted."""

    def __init__(self, file: IO[bytes], count: Callable[[int], None]) -> None:
        self._file = file
        self._count = count

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most so many."""
        found = self._file.read(size)
        self._count(len(found))
        return found


def _open(path: str) -> IO[bytes]:
    if "://" in path and not path.startswith("file://"):
        system, inner = _open_file_system(path)
        opened: IO[bytes] = system.open(inner, "rb")
        return opened
    if path == STDIN:  # by its number: another user's pipe may be read, but not opened by its path
        stream = open(0, "rb", closefd=False)  # noqa: SIM115 - the caller closes it
        if stream.seekable():
            stream.seek(0)
        return stream
    return Path(path.removeprefix("file://")).open("rb")


def _inflate(first: bytes, file: _Watched) -> Iterator[bytes]:
    """Yield the inflated members of a gzip file, one after the other."""
    make, broken = _find_inflater()
    inflater, members = make(), 1
    data, read_bytes = first, len(first)
    while True:
        try:
            while data:
                if inflater.eof:
                    if not data.strip(b"\0"):  # padding behind the last member
                        return
                    inflater, members = make(), _count_member(members)
                out = inflater.decompress(data, INFLATED_BYTES_MAX)
                data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                if out:
                    yield out
                elif not inflater.eof and data:
                    break
        except broken as error:
            raise TraceError(
                f"the gzip compression is broken ({error}). Copy the file again", byte=read_bytes - len(data)
            ) from error
        data = data + file.read(CHUNK_BYTES) if data else file.read(CHUNK_BYTES)
        if not data:
            break
        read_bytes += len(data)
    if not inflater.eof:
        raise CutOffError(
            "the gzip file is cut off. Was it still being written, or only partly copied?", byte=read_bytes
        )


def _count_member(members: int) -> int:
    """Return one more than the members before this one. Raises TraceError where that is too many."""
    if members == MEMBERS_MAX:
        raise TraceError(f"the gzip file has more than {MEMBERS_MAX:,} members: inflate it and compress it as one")
    return members + 1


def _find_inflater() -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return a factory of decompressors, and the exceptions that they raise."""
    try:
        isal_zlib = importlib.import_module("isal.isal_zlib")
    except ImportError:
        return (lambda: zlib.decompressobj(wbits=31)), (zlib.error,)
    return (lambda: isal_zlib.decompressobj(wbits=31)), (isal_zlib.error, zlib.error)


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_CREDENTIALS = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID with its secret",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
    "azure": "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with its key",
}
"""Where the drivers of an extra look for credentials."""


def _open_file_system(path: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path inside it."""
    scheme = path.partition("://")[0]
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise UnavailableError(
            f"{path}: URLs need fsspec: pip install 'rankscope[{_EXTRAS.get(scheme, 'traces')}]'"
        ) from None
    try:
        system, inner = core.url_to_fs(path)
    except ImportError as error:
        cure = f": pip install 'rankscope[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else ""
        raise UnavailableError(f"{path}: no driver for {scheme}:// ({error}){cure}") from error
    except ValueError as error:
        raise SettingError(f"{path}: {_describe(error)}") from error
    except Exception as error:
        raise UnavailableError(f"{path} cannot be opened: {describe_driver_error(error, scheme)}") from error
    return system, inner


@contextlib.contextmanager
def _wrapping_errors(what: str, path: str) -> Iterator[None]:
    """Raise UnavailableError for every error of reading this path: each driver has exceptions of its own kind."""
    scheme = find_scheme(path)
    try:
        yield
    except RankscopeError:
        raise
    except Exception as error:
        if not scheme and not isinstance(error, OSError | ValueError):
            raise  # no driver is involved: a fault here
        raise UnavailableError(f"{what}: {describe_driver_error(error, scheme)}") from error


def find_scheme(path: str) -> str:
    """Return the scheme of a URL that a driver opens; empty for a local path."""
    scheme = path.partition("://")[0] if "://" in path else ""
    return "" if scheme == "file" else scheme


def describe_driver_error(error: BaseException, scheme: str) -> str:
    """Return an error as one line, of a driver with the cure.

    >>> describe_driver_error(OSError("no such bucket."), "webdav")
    'no such bucket. Check the address, the network and the credentials of webdav://'
    """
    if not scheme:
        return _describe(error)
    extra = _EXTRAS.get(scheme, "")
    where = f": {_CREDENTIALS[extra]}" if extra in _CREDENTIALS else f" of {scheme}://"
    return f"{_describe(error).rstrip('.')}. Check the address, the network and the credentials{where}"


def _describe(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0]
