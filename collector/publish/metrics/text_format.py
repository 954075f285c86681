"""Render Prometheus' text formats by column: text 0.0.4 and OpenMetrics 1.0.

A line is a head that all lines of a column share (`name{direction="tx",`), the labels of its row, prepared once for all
families of a page (`run="a",rank="3"} `), and a number. The numbers of a column become text in one go, through JSON,
which writes what is no number (None, NaN, an infinity) as `null`: such a row has no line.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import compress
from operator import add
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.publish.metrics.measures import Measure

_NULL: Final = b"null"
_ENCODER: Final = msgspec.json.Encoder()


class TextFormat(Enum):
    """A text format, by the media type that names it."""

    CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @property
    def end(self) -> bytes:
        """The last line of a page; empty where the format has none."""
        return b"# EOF\n" if self is TextFormat.OPENMETRICS else b""


class Lines(NamedTuple):
    """Lines of one family, and the number of their series."""

    text: bytes
    series: int


def render_head(measure: Measure, text_format: TextFormat) -> bytes:
    """Return the lines before the samples of a family. OpenMetrics names it without `_total` and `_info`, and has its
    unit.
    """
    name, kind = measure.name, measure.kind
    text = measure.help.replace("\\", r"\\").replace("\n", r"\n")
    if text_format is TextFormat.CLASSIC:
        return f"# HELP {name} {text}\n# TYPE {name} {'gauge' if kind == 'info' else kind}\n".encode()
    name = name.removesuffix({"counter": "_total", "info": "_info"}.get(kind, ""))
    unit = f"# UNIT {name} {measure.unit}\n" if measure.unit else ""
    return f"# HELP {name} {text.replace(chr(34), chr(92) + chr(34))}\n# TYPE {name} {kind}\n{unit}".encode()


def render_labels(names: Sequence[str], values: Sequence[str]) -> bytes:
    r"""Return labels as they are written within the braces, without a comma at either end.

    >>> render_labels(("run", "rank"), ('a "b"', "3")).decode()
    'run="a \\"b\\"",rank="3"'
    """
    return ",".join([f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)]).encode()


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def render_numbers(values: Sequence[float | None]) -> list[bytes]:
    """Return each value as the shortest text that is read as the same float; `null` for what is no number.

    >>> render_numbers([412, 0.1, 1e22, True, None, float("nan")])
    [b'412.0', b'0.1', b'1e22', b'1.0', b'null', b'null']
    """
    if not values:
        return []
    floats = [None if value is None else float(value) for value in values]
    return _ENCODER.encode(floats)[1:-1].split(b",")


def render_samples(head: bytes, labels: Sequence[bytes], values: Sequence[float | None]) -> Lines:
    """Return a line for each row that has a number: the head, the row's labels, the number."""
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        return _render_alike(head, labels, values[0])
    numbers = render_numbers(values)
    if _NULL in numbers:
        is_known = [number != _NULL for number in numbers]
        numbers = list(compress(numbers, is_known))
        labels = list(compress(labels, is_known))
    if not numbers:
        return Lines(b"", 0)
    joined = (b"\n" + head).join(map(add, labels, numbers))
    return Lines(b"%b%b\n" % (head, joined), len(numbers))


def _render_alike(head: bytes, labels: Sequence[bytes], value: float | None) -> Lines:
    """Return a line for each row where all have the same value, as in half of the columns of a healthy run: 0.02 us a
    line instead of 0.15.
    """
    number = render_numbers([value])[0]
    if number == _NULL:
        return Lines(b"", 0)
    return Lines(b"%b%b%b\n" % (head, (b"%b\n%b" % (number, head)).join(labels), number), len(labels))


_OPENMETRICS: Final = "application/openmetrics-text"
_OPENMETRICS_VERSIONS: Final = frozenset({"", "1.0.0"})
_CLASSIC: Final = frozenset({"text/plain", "text/*", "*/*"})
_CLASSIC_VERSIONS: Final = frozenset({"", "0.0.4"})

_GZIP_OFFER: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?P<quality>[\d.]+)\s*)?(?:,|$)", re.IGNORECASE)
_QUALITY: Final = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.ASCII)


def choose_format(accept: str) -> TextFormat:
    """Return the text format that a header Accept prefers: OpenMetrics where its quality is no lower than that of the
    classic text, which is also the answer to a header that names neither.

    >>> choose_format("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1").name
    'OPENMETRICS'
    >>> choose_format("application/openmetrics-text;q=0.2,text/plain").name, choose_format("").name
    ('CLASSIC', 'CLASSIC')
    """
    openmetrics = classic = 0.0
    for media_type, version, quality in _parse_accept(accept):
        if media_type == _OPENMETRICS and version in _OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, quality)
        elif media_type in _CLASSIC and version in _CLASSIC_VERSIONS:
            classic = max(classic, quality)
    return TextFormat.OPENMETRICS if openmetrics > 0 and openmetrics >= classic else TextFormat.CLASSIC


def _parse_accept(accept: str) -> Iterator[tuple[str, str, float]]:
    """Yield each media type with its version, empty without one, and its quality; 0 where that is no number."""
    for offer in accept.split(","):
        media_type, *parameters = (part.strip() for part in offer.split(";"))
        named = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = named.get("q", "1").strip()
        known = float(quality) if _QUALITY.fullmatch(quality) else 0.0
        yield media_type.lower(), named.get("version", "").strip().strip('"'), known


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a header Accept-Encoding lets an answer be compressed.

    >>> [accepts_gzip(offer) for offer in ("deflate, gzip;q=0.5", "gzip;q=0", "")]
    [True, False, False]
    """
    offer = _GZIP_OFFER.search(accept_encoding)
    return offer is not None and (offer["quality"] or "1").strip("0.") != ""
