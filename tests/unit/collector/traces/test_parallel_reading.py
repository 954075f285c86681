"""A trace read in pieces by several processes equals the trace read by one."""

import dataclasses
import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from rankscope.collector.traces.files import read_chunks
from rankscope.collector.traces.parallel_reading import LARGE_FILE_BYTES, read_file, read_in_parallel
from rankscope.measure.errors import TraceError
from rankscope.measure.kineto import KinetoTrace, ReadOptions
from rankscope.measure.kineto_columns import TraceColumns, read_trace
from rankscope.measure.kineto_json import TraceBlocks

TRACES = Path(__file__).parents[3] / "traces"
EVENT = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
MISLEADING = {**EVENT, "args": {"Call stack": "}, {" * 400}}


def same(one: object, other: object) -> bool:
    if dataclasses.is_dataclass(one) and dataclasses.is_dataclass(other):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return one == other


def read_in_pieces(document: bytes, piece_bytes: int, chunk_bytes: int) -> KinetoTrace:
    """Decode each piece by itself and join them, as the processes do."""
    blocks, whole, last = TraceBlocks(piece_bytes, mends=False), TraceColumns(), TraceColumns()
    for start in range(0, len(document), chunk_bytes):
        piece = blocks.read_piece(document[start : start + chunk_bytes])
        if piece is not None:
            columns = TraceColumns()
            columns.read(TraceBlocks(mends=False), (piece,))
            whole.absorb(pickle.loads(pickle.dumps(columns)))  # noqa: S301 - made in this very line
    last.read(blocks, ())
    whole.absorb(last)
    return whole.build(blocks.head)


@pytest.mark.parametrize(
    "name", ["a100_nccl_2ranks_r0.json.gz", "h100_bert_small.json.gz", "v100dgxs_resnet50_workers0_a.json.gz"]
)
def test_pieces_joined_are_the_whole(name: str) -> None:
    document = gzip.decompress((TRACES / name).read_bytes())
    whole = read_trace([document])
    assert same(read_in_pieces(document, 200_000, 60_000), whole)


def test_event_longer_than_a_piece_is_read_whole() -> None:
    long = {**EVENT, "name": "long" * 100}
    document = json.dumps({"schemaVersion": 1, "traceEvents": [EVENT, long, EVENT]}).encode()
    assert same(read_in_pieces(document, 100, 50), read_trace([document]))


def test_processes_read_what_one_reads() -> None:
    path = str(TRACES / "a100_nccl_2ranks_r0.json.gz")
    assert same(read_in_parallel(read_chunks(path), 2, piece_bytes=1_000_000), read_trace(read_chunks(path)))


def test_processes_read_every_shape_when_asked() -> None:
    path = str(TRACES / "v100dgxs_resnet50_workers0_a.json.gz")
    found = read_in_parallel(read_chunks(path), 2, ReadOptions(every_shape=True), piece_bytes=1_000_000)
    assert same(found, read_trace(read_chunks(path), ReadOptions(every_shape=True)))
    assert len(found.shapes) > len(read_trace(read_chunks(path)).shapes)


def test_processes_read_arguments_when_asked() -> None:
    path, wanted = str(TRACES / "mi300x_resnet18.json.gz"), {"aten::convolution"}
    found = read_in_parallel(
        read_chunks(path), 2, ReadOptions(every_wait=True, values_of=wanted), piece_bytes=1_000_000
    )
    assert same(found, read_trace(read_chunks(path), ReadOptions(every_wait=True, values_of=wanted)))
    assert len(found.addresses) == 100


def test_processes_read_the_numbers_of_autograd_when_asked() -> None:
    path = str(TRACES / "mi300x_resnet18.json.gz")
    found = read_in_parallel(read_chunks(path), 2, ReadOptions(autograd=True), piece_bytes=1_000_000)
    assert same(found, read_trace(read_chunks(path), ReadOptions(autograd=True)))
    assert found.autograd is not None
    assert len(found.autograd.row) == 1_500


def test_processes_read_hardware_counters() -> None:
    path = str(TRACES / "cupti" / "a100_alexnet_counters.json.gz")
    found = read_in_parallel(read_chunks(path), 2, piece_bytes=200_000)
    assert same(found, read_trace(read_chunks(path)))
    assert len(found.counters) == 77


def test_wrong_cut_is_an_error() -> None:
    document = json.dumps({"traceEvents": [EVENT, MISLEADING, EVENT]}).encode()
    assert read_trace([document]).event_count == 3
    with pytest.raises(TraceError):
        read_in_pieces(document, 700, 100)


def test_large_file_with_misleading_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [MISLEADING] * (2 * LARGE_FILE_BYTES // 1600)}))
    assert path.stat().st_size >= LARGE_FILE_BYTES
    assert read_file(str(path), workers=2).event_count == 2 * LARGE_FILE_BYTES // 1600


def test_large_file_cut_off_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [' + b", ".join([json.dumps(EVENT).encode()] * 70_000) + b', {"ph')
    trace = read_file(str(path), workers=2)
    assert trace.event_count == 70_000
    assert trace.warnings[0].startswith(f"the file is cut off at byte {path.stat().st_size:,}: ")
