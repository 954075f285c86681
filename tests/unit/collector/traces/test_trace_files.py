"""Finding trace files and reading their bytes, with isal and with zlib alone."""

import contextlib
import gzip
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.collector.traces.files import (
    CHUNK_BYTES,
    INFLATED_BYTES_MAX,
    TraceFile,
    find_traces,
    rank_in_name,
    read_chunks,
)
from rankscope.measure.errors import TraceError, UnavailableError

TEXT = b"".join(b'{"ph": "X", "ts": %d},' % random.Random(seed).getrandbits(30) for seed in range(200))


def test_name_that_no_report_can_hold_is_refused(tmp_path: Path) -> None:
    name = bytes(tmp_path) + b"/rank0\xff.json"
    Path(os.fsdecode(name)).write_bytes(b"{}")
    for path in (str(tmp_path), os.fsdecode(name)):
        with pytest.raises(UnavailableError, match=r"/rank0\\udcff\.json: its name is not UTF-8.*: rename it"):
            find_traces([path])


def test_folder_of_folders_with_traces_names_one(tmp_path: Path) -> None:
    for name in ("steps-9-9/rank0.json", "steps-10-10/rank0.json", "notes/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UnavailableError, match=r"\. Its folders have some, such as .*/steps-9-9: name one of them$"):
        find_traces([str(tmp_path)])


def test_path_objects_are_taken_alone_and_in_a_list(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").touch()
    expected = [TraceFile(str(tmp_path / "rank0.json"), named=False)]
    assert find_traces(tmp_path) == find_traces([tmp_path]) == find_traces(str(tmp_path)) == expected
    with pytest.raises(UnavailableError, match="no path of a trace is given"):
        find_traces([])


def test_folder_of_packed_traces_says_what_to_do(tmp_path: Path) -> None:
    for name in ("rank0.json.zst", "rank1.json.zst", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UnavailableError, match=r"rank0\.json\.zst is packed in a way that is not read: unpack it"):
        find_traces([str(tmp_path)])


@pytest.fixture(params=["isal", "zlib"])
def inflater(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read with either library: the import of isal fails for zlib, as where it is not installed."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    return str(request.param)


def read_bytes(folder: Path, written: bytes) -> bytes:
    path = folder / "trace"
    path.write_bytes(written)
    return b"".join(read_chunks(str(path)))


def refusal(folder: Path, written: bytes) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_bytes(folder, written)
    return caught.value


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"[]", b"x" * (2 * CHUNK_BYTES + 7)], ids=["empty", "short", "long"])
def test_plain_file_is_read_as_it_is(tmp_path: Path, text: bytes) -> None:
    assert read_bytes(tmp_path, text) == text


def test_compressed_file_is_recognized_by_its_content(tmp_path: Path, inflater: str) -> None:
    assert read_bytes(tmp_path, gzip.compress(TEXT)) == TEXT, inflater


@pytest.mark.parametrize("more", [-1, 0, 1, 258, INFLATED_BYTES_MAX])
def test_no_byte_is_lost_where_a_piece_is_full(tmp_path: Path, inflater: str, more: int) -> None:
    text = b"a" * (INFLATED_BYTES_MAX + more)
    assert read_bytes(tmp_path, gzip.compress(text)) == text, inflater


def test_file_of_many_chunks_is_read_whole(tmp_path: Path, inflater: str) -> None:
    text = random.Random(1).randbytes(2 * CHUNK_BYTES + 7)
    assert read_bytes(tmp_path, gzip.compress(text, 1)) == text, inflater


def test_all_members_of_a_file_are_read(tmp_path: Path, inflater: str) -> None:
    members = gzip.compress(TEXT) + gzip.compress(b"") + gzip.compress(b"tail")
    assert read_bytes(tmp_path, members) == TEXT + b"tail", inflater


def test_zeros_behind_the_last_member_are_padding(tmp_path: Path, inflater: str) -> None:
    assert read_bytes(tmp_path, gzip.compress(TEXT) + bytes(700)) == TEXT, inflater


@pytest.mark.parametrize("kept", [2, 9, 10, 400, -9, -8, -1])
def test_truncated_compressed_file_is_an_error_with_byte(tmp_path: Path, inflater: str, kept: int) -> None:
    written = gzip.compress(TEXT)[:kept]
    error = refusal(tmp_path, written)
    assert "the gzip file is cut off. Was it still being written, or only partly copied?" in str(error), inflater
    assert error.byte == len(written)


def test_flipped_bit_is_an_error(tmp_path: Path, inflater: str) -> None:
    written = bytearray(gzip.compress(TEXT))
    written[len(written) // 2] ^= 1
    assert "the gzip compression is broken (Error" in str(refusal(tmp_path, bytes(written))), inflater


@settings(max_examples=60)
@given(st.integers(2, len(gzip.compress(TEXT)) - 1), st.integers(0, 7))
def test_flipped_bit_never_passes_for_another_trace(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    written = bytearray(gzip.compress(TEXT))
    written[at] ^= 1 << bit
    with contextlib.suppress(TraceError):
        # Some bits of the header mean nothing: its date, the system it was made on.
        assert read_bytes(tmp_path_factory.mktemp("flipped"), bytes(written)) == TEXT


def test_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"it cannot be read: .*No such file"):
        list(read_chunks(str(tmp_path / "nothing.json")))


def test_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"it cannot be read: .*Is a directory"):
        list(read_chunks(str(tmp_path)))


# -- finding ----------------------------------------------------------------------------------------------------------


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"[]")


def names_found(*paths: str) -> list[str]:
    return [Path(file.path).name for file in find_traces(paths)]


def test_folder_gives_its_traces_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    put(tmp_path, "rank10.json", "rank2.json.gz", "rank1.json", "notes.txt")
    assert names_found(str(tmp_path)) == ["rank1.json", "rank2.json.gz", "rank10.json"]


def test_names_with_signs_that_look_like_numbers_are_sorted_too(tmp_path: Path) -> None:
    put(tmp_path, "²", "b².json", "b2.json", "².json")
    assert sorted(names_found(str(tmp_path))) == sorted(["b².json", "b2.json", "².json"])


def test_profilers_own_files_come_before_other_json(tmp_path: Path) -> None:
    put(tmp_path, "config.json", "host_1.pt.trace.json", "host_2.pt.trace.json.gz")
    assert names_found(str(tmp_path)) == ["host_1.pt.trace.json", "host_2.pt.trace.json.gz"]


def test_file_asked_for_twice_is_found_once_and_as_named(tmp_path: Path) -> None:
    put(tmp_path, "a.json")
    path = str(tmp_path / "a.json")
    assert find_traces([path, str(tmp_path), f"file://{path}"]) == [TraceFile(path, named=True)]


def test_pattern_finds_what_matches(tmp_path: Path) -> None:
    put(tmp_path, "a1.json", "a2.json", "b1.json")
    assert names_found(str(tmp_path / "a*.json")) == ["a1.json", "a2.json"]


def test_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    put(tmp_path, "a[1].json")
    assert names_found(str(tmp_path / "a[1].json")) == ["a[1].json"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("nothing.json", "there is no such file or folder"), ("", "holds no trace: no file ends in .json or .json.gz")],
)
def test_path_without_a_file_is_refused(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(UnavailableError, match=message):
        find_traces([str(tmp_path / path)])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0), ("logs/rank-34.Jul_15.pt.trace.json.gz", 34), ("worker7_step_12.169.pt.trace.json", 7),
        ("job_r12.json", 12), ("RANK_3.json", 3), ("rank12/trace.json", None), ("trace.json", None),
        ("r5.json", 5), ("car5.json", None),
        ("worker-0_71.16902.pt.trace.json", None), ("worker-3.pt.trace.json", 3), ("1690-TP-0.trace.json.gz", 0),
        ("1690-TP-0-DP-1.trace.json.gz", None), ("trace_0.json", 0), ("trace_20260101.json", None),
    ],
)  # fmt: skip
def test_files_name_may_tell_its_rank(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank
