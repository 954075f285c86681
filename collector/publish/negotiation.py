"""What a client prefers, from the headers of its request (RFC 9110, sections 12.5.1 and 12.5.3)."""

import re
from collections.abc import Iterator
from typing import Final

from rankscope.collector.publish.exposition import TextFormat

_OPENMETRICS: Final = "application/openmetrics-text"
_OPENMETRICS_VERSIONS: Final = frozenset({"", "1.0.0"})
_CLASSIC: Final = frozenset({"text/plain", "text/*", "*/*"})
_CLASSIC_VERSIONS: Final = frozenset({"", "0.0.4"})

_GZIP_OFFER: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?P<quality>[\d.]+)\s*)?(?:,|$)", re.IGNORECASE)
_QUALITY: Final = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.ASCII)


def choose_format(accept: str) -> TextFormat:
    """The text format that a header Accept likes best: OpenMetrics where it is liked no less than the classic text,
    which whoever names neither gets.

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
    """Each media type with its version, empty without one, and its quality. One that is no number counts as none."""
    for offer in accept.split(","):
        media_type, *parameters = (part.strip() for part in offer.split(";"))
        named = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = named.get("q", "1").strip()
        known = float(quality) if _QUALITY.fullmatch(quality) else 0.0
        yield media_type.lower(), named.get("version", "").strip().strip('"'), known


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a header Accept-Encoding lets an answer be compressed.

    >>> [accepts_gzip(offer) for offer in ("deflate, gzip;q=0.5", "gzip;q=0", "")]
    [True, False, False]
    """
    offer = _GZIP_OFFER.search(accept_encoding)
    return offer is not None and (offer["quality"] or "1").strip("0.") != ""
