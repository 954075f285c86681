"""Laws about reading dumps of NCCL's Inspector, whatever is in the files and however they grow."""

import json
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rankscope.agent.sidecar.inspector_dump import DumpReading, InspectorDump
from rankscope.agent.sidecar.inspector_place import InspectorPlace
from rankscope.measure.codec import decode, encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.node_messages import InspectorRead
from tests.inspector_dumps import SAMPLED, WHOLE, Plugin

PID = 7
BEGIN_US = 10**15
IDENTITY = RankIdentity(
    run="r", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-of-0", pid=PID
)

operations = st.tuples(
    st.sampled_from(["AllReduce", "AllGather", "Broadcast", "Send"]),
    st.sampled_from(["0xa", "0xb"]),
    st.integers(0, 500),
)
numbers = st.integers() | st.floats() | st.text(max_size=3) | st.none() | st.booleans()
fields = st.sampled_from(
    ["header__id", "header__n_ranks", "header__comm_name", "metadata__pid", "metadata__dump_timestamp_us",
     "metadata__inspector_output_format_version", "coll_perf__coll", "coll_perf__coll_sn", "coll_perf__coll_busbw_gbs",
     "coll_perf__coll_msg_size_bytes"]
)  # fmt: skip


def write_lines(version: str, done: Sequence[tuple[str, str, int]]) -> bytes:
    """The lines of a plugin that dumps after each operation."""
    with tempfile.TemporaryDirectory() as folder:
        plugin = Plugin(Path(folder), PID, version, begin_us=BEGIN_US)
        for op, id_, took_us in done:
            plugin.complete(op, id_, took_us=took_us)
            plugin.dump()
        return plugin.path.read_bytes() if plugin.path.exists() else b""


def read_parts(parts: Sequence[bytes]) -> list[DumpReading]:
    """What is read after each part was appended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump"
        dump = InspectorDump(InspectorPlace(path=str(path), begin_wall_us=BEGIN_US), PID)
        found = []
        for part in parts:
            with path.open("ab") as file:
                file.write(part)
            found.append(dump.read())
        return found


def check_notice(found: DumpReading) -> None:
    notice = InspectorRead(sequence=1, identity=IDENTITY, host_ns=0, **found._asdict())
    assert decode(encode(notice)) == notice


@given(st.sampled_from([SAMPLED, WHOLE]), st.lists(operations, max_size=8), st.lists(st.integers(0, 5_000), max_size=4))
def test_however_the_file_grows_the_same_is_read(
    version: str, done: list[tuple[str, str, int]], cuts: list[int]
) -> None:
    text = write_lines(version, done)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(places)]
    found = read_parts(parts)
    assert (found[-1].lines_skipped, found[-1].bytes_skipped) == (0, 0)
    # By the operations themselves: the last collective of each communicator, and how many have a bandwidth.
    last = {id_: (op, sum((op, id_) == one[:2] for one in done) - 1) for op, id_, _ in done if op != "Send"}
    seen = {one.id: (one.last_op, one.last_sequence) for one in found[-1].communicators if one.last_op}
    assert seen == last
    counted = sum(kind.count for reading in found for one in reading.communicators for kind in one.bandwidths)
    assert counted == sum(took_us > 0 for _, _, took_us in done)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_read_without_an_error(parts: list[bytes]) -> None:
    for found in read_parts([part + b"\n" for part in parts]):
        check_notice(found)


@given(fields, numbers)
def test_any_value_of_a_field_is_read_or_counted(field: str, value: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plugin = Plugin(Path(folder), PID, begin_us=BEGIN_US)
        line = plugin.complete()
        line["metadata"]["dump_timestamp_us"] = BEGIN_US
        part, _, name = field.partition("__")
        line[part][name] = value
        (found,) = read_parts([json.dumps(line).encode() + b"\n"])
    assert len(found.communicators) + found.lines_skipped == 1
    check_notice(found)
