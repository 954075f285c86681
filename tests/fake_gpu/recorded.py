"""The GPU work of a recorded trace, as the fake GPU repeats it. Read without the code that is tested."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

KINDS = {"kernel": 0, "gpu_memcpy": 1, "memcpy": 1, "gpu_memset": 2, "memset": 2}
CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
NO_CALL = -1


class RecordedWork(NamedTuple):
    """A piece of work, ns since the first call of the trace. `call_at_ns` is NO_CALL if the trace has no call of it.
    `metadata` is what Kineto had of a collective, as the inside of a JSON object.
    """

    kind: int
    stream: int
    call_at_ns: int
    begin_at_ns: int
    end_at_ns: int
    name: str
    call: str
    metadata: str


def read_work(path: Path) -> list[RecordedWork]:
    """Return the work of a trace."""
    trace = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    calls = {
        event["args"]["correlation"]: event
        for event in events
        if str(event.get("cat")).lower() in CALLS and event.get("args", {}).get("correlation")
    }
    work = [event for event in events if str(event.get("cat")).lower() in KINDS]
    called = [calls.get(event["args"].get("correlation")) for event in work]
    zero_ns = min(_ns(call["ts"]) for call in called if call is not None)
    return [_to_work(event, call, zero_ns) for event, call in zip(work, called, strict=True)]


def _to_work(event: dict[str, Any], call: dict[str, Any] | None, zero_ns: int) -> RecordedWork:
    arguments = event["args"]
    told = {key: value for key, value in arguments.items() if type(value) in {int, str} and key != "correlation"}
    begin_ns = _ns(event["ts"]) - zero_ns
    return RecordedWork(
        kind=KINDS[event["cat"].lower()],
        stream=int(arguments.get("stream", 0)),
        call_at_ns=NO_CALL if call is None else _ns(call["ts"]) - zero_ns,
        begin_at_ns=begin_ns,
        end_at_ns=begin_ns + _ns(event["dur"]),
        name=event["name"],
        call="" if call is None else call["name"],
        metadata=json.dumps({"Collective name": told.pop("Collective name"), **told})[1:-1]
        if "Collective name" in told
        else "",
    )


def _ns(us: Decimal | int) -> int:
    """Return a trace's time, which has at most three decimals, in ns."""
    return int(us * 1000)
