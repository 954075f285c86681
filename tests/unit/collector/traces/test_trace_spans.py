"""Span of time and steps of a trace file, and the list of files."""

import json
import re
from pathlib import Path
from typing import Any

from rankscope.collector.reports.trace_list import render_list
from rankscope.collector.traces.files import find_traces
from rankscope.collector.traces.recognized import recognize
from rankscope.collector.traces.spans import Span, read_span
from tests.unit.measure.written_traces import event


def write(folder: Path, events: list[Any], **head: Any) -> str:
    path = folder / "rank0.json"
    path.write_text(json.dumps({**head, "traceEvents": events}))
    return str(path)


def test_span_is_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    # 1.7e9 s + 5 us to + 5 + 20 us, though the event that begins last ends before that
    events = [event("cpu_op", "a", 5, 20), event("cpu_op", "b", 10, 3)]
    base_ns = 1_700_000_000 * 10**9
    span = read_span(write(tmp_path, events, baseTimeNanoseconds=base_ns))
    assert span == Span(base_ns + 5_000, base_ns + 25_000, is_wall_clock=True, steps=())


def test_steps_are_the_numbers_of_the_profiler(tmp_path: Path) -> None:
    events = [event("user_annotation", f"ProfilerStep#{number}", number * 10, 9) for number in (3, 4, 7)]
    span = read_span(write(tmp_path, events))
    assert isinstance(span, Span)
    assert span.steps == (3, 4, 7)


def test_time_since_the_start_of_a_machine_is_no_wall_clock(tmp_path: Path) -> None:
    span = read_span(write(tmp_path, [event("cpu_op", "a", 5, 20)]))
    assert span == Span(5_000, 25_000, is_wall_clock=False, steps=())
    found = recognize(find_traces([str(tmp_path)]))
    line = render_list(found, {found[0].file.path: span}).splitlines()[1]
    assert re.split("  +", line)[-4:] == ["-", "20.0 us", "-", f"{tmp_path}/rank0.json"]


def test_reason_is_given_where_there_is_no_span(tmp_path: Path) -> None:
    assert str(read_span(str(tmp_path / "none.json"))).startswith("it cannot be read: [Errno 2]")
    assert read_span(write(tmp_path, [{"ph": "M", "name": "process_name"}])) == (
        "none of its events has a time and a duration"
    )
