"""Read from an answer of OTLP how much of an accepted request the receiver has left out.

https://opentelemetry.io/docs/specs/otlp/#partial-success: a request with a partial success must not be repeated. The
exporters of the SDK do not read it.

Importing this file imports the SDK's protocol, which only the extra `otlp` installs.
"""

from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

REMARK_CHARS_MAX: Final = 200


class Partial(NamedTuple):
    """Points or log records that a receiver has left out, and what it says about them or, with none left out, to warn;
    nothing left out and empty where it has accepted all.
    """

    rejected: int = 0
    remark: str = ""


def read_partial(answer: Any) -> Partial:
    """Return what an answer about metrics or logs says. A negative count, which nobody should send, is none."""
    partial = answer.partial_success
    rejected = getattr(partial, "rejected_data_points", None) or getattr(partial, "rejected_log_records", None) or 0
    return Partial(max(0, rejected), shorten(partial.error_message, REMARK_CHARS_MAX))


def parse_partial(body: bytes) -> Partial:
    """Return what the body of an answer over HTTP says, about metrics or logs, whose fields have the same numbers. A
    body that is none of them, or is cut off, says nothing.
    """
    try:
        return read_partial(ExportMetricsServiceResponse.FromString(body))
    except DecodeError:
        return Partial()


def shorten(text: str, chars_max: int) -> str:
    """Return a text from outside as one printable line.

    >>> shorten("too" + chr(10) + "many points", 8)
    'too many'
    """
    return "".join(char if char.isprintable() else " " for char in text)[:chars_max]
