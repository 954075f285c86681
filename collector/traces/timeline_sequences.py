"""Draw the sequences of kernels that repeat into a merged timeline: a line for each stream of a rank."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rankscope.collector.traces.kernel_sequences import SequenceSpans
from rankscope.collector.traces.timeline_events import format_us


def write_sequences(sequences: Sequence[SequenceSpans], pid: int, label: str, shift_ns: int) -> list[dict[str, Any]]:
    """Return the events of a rank's sequences in a process of their own; `shift_ns` is added to their times. They are
    numbered by cost from 1, as the rows of the table. One that is still open when the next of its stream begins ends
    there.
    """
    spans = sorted(
        (*lane, start_ns, end_ns, number)
        for number, one in enumerate(sequences, 1)
        for *lane, start_ns, end_ns in zip(
            one.device.tolist(), one.stream.tolist(), one.start_ns.tolist(), one.end_ns.tolist(), strict=True
        )
    )
    lanes = {lane: tid for tid, lane in enumerate(dict.fromkeys(span[:2] for span in spans), 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{label}: sequences of kernels"}}
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"GPU {device}, stream {stream}"}}
        for (device, stream), tid in lanes.items()
    ]
    for place, (device, stream, start_ns, end_ns, number) in enumerate(spans):
        following = spans[place + 1] if place + 1 < len(spans) else None
        until_ns = min(end_ns, following[2]) if following and following[:2] == (device, stream) else end_ns
        row = sequences[number - 1].row
        events.append(
            {
                "ph": "X", "cat": "kernel_sequence", "name": f"sequence {number}", "pid": pid,
                "tid": lanes[device, stream], "ts": msgspec.Raw(format_us(start_ns + shift_ns)),
                "dur": msgspec.Raw(format_us(until_ns - start_ns)),
                "args": {"kernels": row.names, "count": row.count},
            }
        )  # fmt: skip
    return events
