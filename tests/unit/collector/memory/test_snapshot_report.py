"""What is reported of a memory snapshot, by numbers that are derived here by hand."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.memory.plain_pickle import load_plain
from rankscope.collector.memory.snapshot_events import FRAMES_MAX, check_snapshot
from rankscope.collector.memory.snapshot_report import DeviceMemory, HistoryReport, build_report
from rankscope.collector.reports.snapshot_text import render_snapshot
from rankscope.measure.errors import TraceError
from tests.unit.collector.memory.snapshots import LOSS, MODEL, block, entry, segment, snapshot, write

RECORDED = Path(__file__).parents[3] / "traces" / "h200" / "snapshot.pickle"
MIB = 1 << 20
A, B = 0x7F0000000000, 0x7F0000200000
# Two segments of 2 MiB. In the first 1 MiB is allocated for 1,000,000 bytes, 0.5 MiB for 0.5 MiB, and the rest is free;
# in the second nothing is.
USED = segment(
    A,
    block(A, MIB, 1_000_000, frames=MODEL),
    block(A + MIB, MIB // 2, MIB // 2, frames=LOSS),
    block(A + MIB + MIB // 2, MIB // 2, state="inactive"),
)
EMPTY = segment(B, block(B, 2 * MIB, state="inactive"))
# 3 MiB were reserved and 0.5 MiB (the second block) allocated before the first event. 600 bytes older than it are freed
# by the second one, 4,000,000 bytes come and go, and 1,000,000 stay. An allocation of 8 MiB fails.
HISTORY = [
    entry("alloc", B, 4_000_000, 1_000, LOSS),
    entry("free_requested", B + 8 * MIB, 600, 1_010),
    entry("free_completed", B + 8 * MIB, 600, 1_010),
    entry("segment_alloc", A, MIB, 1_020),
    entry("oom", MIB // 4, 8 * MIB, 1_025, MODEL),
    entry("free_requested", B, 4_000_000, 1_030),
    entry("free_completed", B, 4_000_000, 1_050),
    entry("alloc", A, 1_000_000, 1_060, MODEL),
]


def device_of(content: Any) -> DeviceMemory:
    found = build_report(check_snapshot(content), "s.pickle", with_flow=False).report.devices
    assert len(found) == 1
    return found[0]


def history_of(content: Any) -> HistoryReport:
    history = device_of(content).history
    assert history is not None
    return history


def test_totals_and_fragmentation_of_a_device() -> None:
    device = device_of(snapshot(USED, EMPTY))
    assert (device.reserved_bytes, device.allocated_bytes) == (4 * MIB, MIB + MIB // 2)
    assert device.rounding_bytes == MIB - 1_000_000
    assert (device.inactive_split_bytes, device.empty_bytes, device.pending_free_bytes) == (MIB // 2, 2 * MIB, 0)
    assert device.fragmentation == pytest.approx(1 - 1.5 / 4)


def test_memory_awaiting_another_stream_is_not_free_or_allocated() -> None:
    device = device_of(snapshot(segment(A, block(A, MIB, 9, state="active_pending_free"), block(A + MIB, 512, 512))))
    assert (device.allocated_bytes, device.pending_free_bytes, device.inactive_split_bytes) == (512, MIB, 0)


def test_snapshot_of_a_gpu_has_the_bytes_that_torch_says() -> None:
    device = device_of(load_plain(RECORDED.read_bytes()))
    assert (device.allocated_bytes, device.reserved_bytes) == (262_501_888, 327_155_712)
    history = device.history
    assert history is not None
    assert [row.asked_bytes for row in history.out_of_memory] == [2**40]
    # torch's peak is with the allocator's rounding, which these allocations have 1 % of.
    assert 0.98 * 322_448_896 < history.peak_bytes <= 322_448_896


def test_segments_are_summed_by_kind_and_pool() -> None:
    small = segment(B, block(B, 512, 100), kind="small", segment_pool_id=(0, 3), is_expandable=True)
    rows = device_of(snapshot(USED, small)).kinds
    assert [(r.kind, r.pool, r.is_expandable, r.reserved_bytes, r.rounding_bytes) for r in rows] == [
        ("large", "default", False, 2 * MIB, MIB - 1_000_000),
        ("small", "(0, 3)", True, 512, 412),
    ]


def test_only_segments_in_use_with_free_memory_are_listed() -> None:
    rows = device_of(snapshot(EMPTY, USED)).segments
    assert [(r.address, r.free_bytes, r.largest_free_bytes, r.free_block_count) for r in rows] == [
        ("0x7f0000000000", MIB // 2, MIB // 2, 1)
    ]


def test_allocations_of_one_stack_are_one_row_at_the_users_line() -> None:
    blocks = [block(A + place * 512, 512, 500, frames=MODEL) for place in range(3)]
    rows = device_of(snapshot(segment(A, *blocks, block(A + 1536, 1024, 1024, frames=LOSS)))).allocations
    assert [(r.bytes, r.count, r.largest_bytes, r.place) for r in rows] == [
        (1536, 3, 512, "/home/a/model.py:12 forward"),
        (1024, 1, 1024, "/home/a/train.py:44 main"),
    ]
    assert rows[0].stack[0] == "/venv/torch/nn/modules/linear.py:125 forward"


def test_peak_counts_older_memory_held_or_freed_later() -> None:
    history = history_of(snapshot(USED, EMPTY, traces=[HISTORY]))
    older = MIB // 2 + 600
    assert (history.peak_bytes, history.peak_older_bytes, history.peak_ns) == (4_000_000 + older, older, 0)
    assert [(r.bytes, r.place) for r in history.at_peak] == [(4_000_000, "/home/a/train.py:44 main")]
    assert (history.event_count, history.span_ns, history.peak_reserved_bytes) == (8, 60_000, 4 * MIB)


def test_failed_allocation_has_what_was_held_then() -> None:
    (row,) = history_of(snapshot(USED, EMPTY, traces=[HISTORY])).out_of_memory
    # `oom` has the bytes asked for as its size, and the free ones in place of an address.
    assert (row.asked_bytes, row.device_free_bytes, row.time_ns) == (8 * MIB, MIB // 4, 25_000)
    assert (row.held_bytes, row.reserved_bytes) == (4_000_000 + MIB // 2, 4 * MIB)
    assert row.place == "/home/a/model.py:12 forward"


def test_allocation_whose_free_is_lost_ends_at_the_next_one() -> None:
    history = history_of(snapshot(traces=[[entry("alloc", A, 10, 1), entry("alloc", A, 30, 2)]]))
    assert (history.lost_free_count, history.peak_bytes) == (1, 30)


def test_history_without_times_has_no_times() -> None:
    timeless = [{key: value for key, value in one.items() if key != "time_us"} for one in HISTORY]
    result = build_report(check_snapshot(snapshot(USED, EMPTY, traces=[timeless])), "s", with_flow=True)
    history = result.report.devices[0].history
    assert history is not None
    assert (history.span_ns, history.peak_ns, history.out_of_memory[0].time_ns) == (None, None, None)
    assert result.flows == []


def test_snapshot_without_history_says_how_to_record_one() -> None:
    device = device_of(snapshot(USED, traces=[[]]))
    assert device.history is None
    assert device.history_problem is not None
    assert "_record_memory_history" in device.history_problem


def test_old_blocks_without_address_lie_one_behind_the_other() -> None:
    old = [{key: one[key] for key in ("size", "state")} for one in USED["blocks"]]
    (read,) = check_snapshot(snapshot({**USED, "blocks": old})).segments
    assert [one.address for one in read.blocks] == [A, A + MIB, A + MIB + MIB // 2]
    assert device_of(snapshot({**USED, "blocks": old})).rounding_bytes == 0


def test_deep_stacks_are_cut_at_their_outer_end() -> None:
    frames = [{"filename": "f.py", "line": line, "name": "f"} for line in range(FRAMES_MAX + 5)]
    stack = check_snapshot(snapshot(segment(A, block(A, 512, 512, frames=frames)))).stacks[1]
    assert [frame.line for frame in stack] == list(range(FRAMES_MAX))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "no list of segments"),
        ({"segments": 3}, "no list of segments"),
        ({"segments": [3]}, "segments has something else than dicts"),
        ({"segments": [], "device_traces": {}}, "device_traces is no list"),
        ({"segments": [], "device_traces": [3]}, "something else than lists"),
        (snapshot({**USED, "address": -1}), "address is -1"),
        (snapshot({**USED, "total_size": True}), "total_size is True"),
        (snapshot({**USED, "total_size": "many"}), "total_size is str"),
        (snapshot({**USED, "blocks": None}), "blocks is no list"),
        (snapshot(segment(A, {**block(A, 1), "state": 3})), "state is no text"),
        (snapshot(segment(A, {**block(A, 1), "frames": 3})), "frames is no list"),
        (snapshot(segment(A, {**block(A, 1), "frames": [3]})), "something else than frames"),
        (snapshot(USED, USED), "stands in it twice"),
    ],
)
def test_wrong_field_is_named(content: Any, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        check_snapshot(content)


# -- the command ------------------------------------------------------------------------------------------------------


def test_command_prints_tables_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, snapshot(USED, EMPTY, traces=[HISTORY]))
    assert main(["memory", path, "--flow", str(tmp_path / "flow.svg")]) == 0
    text = capsys.readouterr().out
    assert "device 0: 1.50 MiB allocated of 4.00 MiB in 2 segments" in text
    assert "/home/a/model.py:12 forward" in text
    picture = ET.fromstring((tmp_path / "flow.svg").read_text())  # noqa: S314 - our own
    drawn = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert any(one is not None and "freed after 30.0 us: /home/a/train.py:44 main" in one for one in drawn)


def test_command_prints_the_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = snapshot(USED, EMPTY, traces=[HISTORY])
    assert main(["memory", write(tmp_path, content), "--json"]) == 0
    report = build_report(check_snapshot(content), "", with_flow=False).report
    printed = json.loads(capsys.readouterr().out)
    assert printed["devices"] == json.loads(msgspec.json.encode(report.devices))


def test_command_says_that_nothing_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", write(tmp_path, snapshot(USED)), "--flow", str(tmp_path / "flow.svg")]) == 1
    assert "nothing is drawn: the snapshot has no history with times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [(["--top", "0"], 2, "--top is 0"), (["--flow", "/missing/flow.svg"], 1, "(from --flow) cannot be written")],
)
def test_command_says_what_it_cannot_do(
    more: list[str], status: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", write(tmp_path, snapshot(USED, EMPTY, traces=[HISTORY])), *more]) == status
    assert reason in capsys.readouterr().err


def test_empty_snapshot_is_said_to_be_empty() -> None:
    report = build_report(check_snapshot(load_plain(b"\x80\x02}X\x08\x00\x00\x00segments]s.")), "s", with_flow=False)
    assert render_snapshot(report.report, 20).startswith("s: nothing is reserved on any device")


def test_names_cannot_control_the_terminal() -> None:
    frames = [{"filename": "/a\x1b[2J.py", "line": 1, "name": "f"}]
    report = build_report(check_snapshot(snapshot(segment(A, block(A, 512, 512, frames=frames)))), "s", with_flow=False)
    assert "\x1b" not in render_snapshot(report.report, 20)


CODES = [
    ("/venv/torch/nn/modules/linear.py", "forward", 120, 130, "Linear", True),
    ("/home/a/model.py", "forward", 10, 20, "Attention", False),
]


def failed_in(*segments: Any, asked: int = 8 * MIB, after: Any = ()) -> DeviceMemory:
    """Return the device whose last event is an allocation that failed, with a quarter of a MiB free on it."""
    return device_of(snapshot(*segments, traces=[[entry("oom", MIB // 4, asked, 5), *after]]))


def test_largest_fit_is_one_piece_or_what_the_device_had_free() -> None:
    small = segment(A + 64 * MIB, block(A + 64 * MIB, MIB, state="inactive"), kind="small")
    graph = segment(A + 96 * MIB, block(A + 96 * MIB, 9 * MIB, state="inactive"), segment_pool_id=(0, 1))
    room = failed_in(USED, EMPTY, small, graph).room
    assert room is not None
    assert (room.asked_bytes, room.device_free_bytes) == (8 * MIB, MIB // 4)
    assert (room.unused_bytes, room.unused_count, room.largest_unused_bytes) == (2 * MIB + MIB // 2, 2, 2 * MIB)
    assert room.fits_bytes == 2 * MIB
    of_small = failed_in(USED, small, asked=MIB).room
    assert of_small is not None
    assert of_small.fits_bytes == MIB


def test_room_is_said() -> None:
    failed = check_snapshot(snapshot(USED, traces=[[entry("oom", MIB, 8 * MIB, 5)]]))
    assert (
        "the allocation that failed asked for 8.00 MiB; at most 1.00 MiB would have fitted: 1.00 MiB free on the "
        "device, 0.50 MiB unused in 1 piece, the largest 0.50 MiB"
    ) in render_snapshot(build_report(failed, "s", with_flow=False).report, 9)


def test_segments_that_expand_grow_by_what_the_device_had() -> None:
    room = failed_in(segment(A, block(A, MIB, state="inactive"), is_expandable=True)).room
    assert room is not None
    assert room.fits_bytes == MIB + MIB // 4


def test_room_is_not_known_once_something_has_happened_since() -> None:
    assert failed_in(USED, after=[entry("free_requested", A, 600, 9)]).room is None
    assert device_of(snapshot(USED)).room is None


def test_modules_are_told_by_the_code_that_the_agent_has_added() -> None:
    device = device_of({**snapshot(USED), "rankscope_modules": CODES})
    assert [(row.module, row.bytes, row.count) for row in device.modules] == [
        ("Linear in Attention", MIB, 1),
        ("", MIB // 2, 1),
    ]
    assert [row.module for row in device.allocations] == ["Linear in Attention", None]
    assert device_of(snapshot(USED)).modules == []


@pytest.mark.parametrize("wrong", [{}, [["a"]], [("a", "b", 1, 2, "c")], [("a", "b", 1, 2, 3, True)], [()] * 100_001])
def test_code_of_modules_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(TraceError, match="rankscope_modules"):
        check_snapshot({**snapshot(USED), "rankscope_modules": wrong})
