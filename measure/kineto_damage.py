"""Mend the JSON of damaged traces: what JSON forbids inside values, quotes without a backslash, stray commas.

Damage inside a value (control characters, broken UTF-8, `nan`) is replaced byte for byte, so that positions stay.
Damage of the structure is mended event by event: an unescaped quote ends a string too early, so that nothing behind it
can be trusted until the next event begins.
"""

import re
from collections import Counter
from typing import NamedTuple

import msgspec

QUOTES = "quotes without a backslash in a name or a text"
COMMAS = "a comma without a value behind it"
BRACKET_MISSING = "the list of events has no closing bracket: events may be missing behind the last one"

SPACE = b" \t\r\n"
_LIKELY_END = re.compile(rb"\}\s*,?\s*\]")

# The last string may have no end: a piece may be cut inside it, and what is bad in front of the cut must not hide that.
_TOKENS_TO_MEND = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|-?\b(?:nan|inf|infinity)\b', re.IGNORECASE | re.DOTALL)
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_BAD_IN_STRING = re.compile(
    rb'[\x00-\x1f]|\\(?!["\\/bfnrtu]|\Z)|\\u(?![0-9a-fA-F]{4})|%s(?!%s)|(?<!%s)%s' % (_HIGH, _LOW, _HIGH, _LOW)
)
_ESCAPES = re.compile(rb"\\\\")

_BETWEEN_EVENTS = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur)"\s*:)')
_BETWEEN_EVENTS_OF_KINETO = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"ph"\s*:)')
_FIRST_KEY_OF_KINETO = re.compile(rb'\s*\{\s*"ph"')
_FIELD = rb'"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:'
_ARGUMENT = rb'"[^"\\]{1,80}"\s*:'
# A name ends at the quote in front of another field of the event, or in front of the end of an object.
_ENDS = rb"\s*(?:,\s*%s|\}\s*(?:\Z|[}\]]|,\s*%s))"
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("%s)' % (_ENDS % (_FIELD, _FIELD)), re.DOTALL)
_TEXT = re.compile(rb'(%s\s*")(.*?)("%s)' % (_ARGUMENT, _ENDS % (_ARGUMENT, _ARGUMENT)), re.DOTALL)
_INNER_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_LONE_COMMA = re.compile(rb'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_RAW = msgspec.json.Decoder(msgspec.Raw)
_BYTE_OF_ERROR = re.compile(r"\(byte (\d+)\)")


FORMATS = (
    (b"\x1f\x8b", "compressed by gzip twice: decompress it once"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it first (zstd -d)"),
    (b"BZh", "compressed by bzip2: decompress it first (bunzip2)"),
    (b"\xfd7zXZ\0", "compressed by xz: decompress it first (unxz)"),
    (b"PK\3\4", "a ZIP archive: unpack it first"),
    (b"\xff\xfe\0\0", "UTF-32 text: convert it to UTF-8 first"),
    (b"\xff\xfe", "UTF-16 text: convert it to UTF-8 first"),
    (b"\xfe\xff", "UTF-16 text: convert it to UTF-8 first"),
    (b"\x80", "a pickle of Python; memory snapshots are read by `rankscope memory`"),
    (b"SQLite format 3", "an SQLite database; a trace of torch.profiler is JSON"),
)
"""First bytes of files that are taken for traces, and what they are."""
_TAR_MARK, _TAR_MARK_AT = b"ustar", 257


def name_format(content: bytes) -> str | None:
    r"""Return what else than JSON a file is by its first bytes, with the cure; None where that is not known.

    >>> name_format(b"PK\x03\x04...")
    'a ZIP archive: unpack it first'
    """
    if content[_TAR_MARK_AT:].startswith(_TAR_MARK):
        return "a tar archive: unpack it first"
    return next((name for first, name in FORMATS if content.startswith(first)), None)


def mend_values(piece: bytes) -> bytes:
    """Return the piece with what JSON forbids in values replaced by what it allows, byte for byte."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        piece = re.sub("[\udc80-\udcff]", "?", piece.decode(errors="surrogateescape")).encode()
    return _TOKENS_TO_MEND.sub(_mend_token, piece)


def _mend_token(found: re.Match[bytes]) -> bytes:
    token = found.group()
    if not token.startswith(b'"'):
        return (b"null" if len(token) > len(b"nan") else b'""').ljust(len(token))  # a missing number
    if not _BAD_IN_STRING.search(token):
        return token
    # Pairs of backslashes are right; hidden, they cannot be halved.
    hidden = _ESCAPES.sub(b"\xff\xff", token)
    return _BAD_IN_STRING.sub(lambda bad: b"?" * len(bad.group()), hidden).replace(b"\xff\xff", b"\\\\")


def mend_commas(text: bytes) -> bytes:
    """Return the text with commas in front of a closing bracket replaced by spaces.

    >>> mend_commas(b'{"a": [1, 2,], "b": ",]",}')
    b'{"a": [1, 2 ], "b": ",]" }'
    """
    return _LONE_COMMA.sub(lambda found: b" " if found.group() == b"," else found.group(), text)


def mend_quotes(text: bytes) -> bytes:
    r"""Return one event with the quotes inside its name escaped, and those inside its other texts.

    >>> mend_quotes(b'{"ph": "X", "name": "f(3): {"a": "b"}", "ts": 1, "args": {"x": "say "a""}}')
    b'{"ph": "X", "name": "f(3): {\\"a\\": \\"b\\"}", "ts": 1, "args": {"x": "say \\"a\\""}}'
    """
    return _TEXT.sub(_escape_quotes, _NAME.sub(_escape_quotes, text))


def _escape_quotes(found: re.Match[bytes]) -> bytes:
    before, inner, behind = found.groups()
    return bytes(before + _INNER_QUOTE.sub(lambda one: b'\\"' if one.group() == b'"' else one.group(), inner) + behind)


class FirstEvent(NamedTuple):
    """The first event of a text: itself, what follows it, and the reasons why it had to be mended."""

    event: bytes
    rest: bytes
    mended: tuple[str, ...] = ()


class CutError(Exception):
    """Raised for a text that ends inside its first event."""


def split_events(text: bytes) -> list[bytes]:
    """Return the texts that begin with an event each, cut where the next one seems to begin.

    >>> split_events(b'{"ph": "X", "name": "a"b"}, {"ph": "X"}]')
    [b'{"ph": "X", "name": "a"b"}', b'{"ph": "X"}]']
    """
    between = _BETWEEN_EVENTS_OF_KINETO if _FIRST_KEY_OF_KINETO.match(text) else _BETWEEN_EVENTS
    return between.split(text)


def mend_first_event(text: bytes) -> FirstEvent | None:
    """Return the event at the begin of the text, mended if needed; None if that does not help. Raises CutError."""
    first = _read_first(text)
    if first is not None:
        return first
    for mended, reasons in (
        (mend_commas(text), (COMMAS,)),
        (mend_quotes(text), (QUOTES,)),
        (mend_commas(mend_quotes(text)), (QUOTES, COMMAS)),
    ):
        first = _read_first(mended)
        if first is not None:
            return first._replace(mended=reasons)
    return None


class Damage:
    """What was mended in one trace: `mended` counts the events by reason, `notes` are sentences about the rest."""

    def __init__(self) -> None:
        self.mended: Counter[str] = Counter()
        self.notes: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """Everything as sentences for the user."""
        mended = [f"{count:,} x mended: {what}" for what, count in sorted(self.mended.items())]
        return [*self.notes, *mended]

    def mend_event(self, text: bytes) -> bytes | None:
        """Return the event that a text consists of, mended if needed and counted; None if that does not help."""
        try:
            first = mend_first_event(text)
        except CutError:
            return None
        if first is None or first.rest.strip(SPACE):
            return None
        self.mended.update(first.mended)
        return first.event

    def find_rest(self, last: bytes, first: FirstEvent | None) -> bytes | None:
        """Return what follows the events, behind their bracket, None if the file ends inside an event; what is missing
        is noted.
        """
        if first is None:
            found = _LIKELY_END.search(last)
            return last[found.end() :] if found else b""
        rest = first.rest.strip(SPACE)
        following = rest[1:].lstrip(SPACE)[:1] if rest[:1] == b"," else b""
        if following == b"{":
            return None
        if following == b"]":
            self.mended[COMMAS] += 1
            rest = rest[1:].lstrip(SPACE)
        if rest[:1] == b"]":
            return rest[1:]
        self.notes.append(BRACKET_MISSING)
        return b"" if rest == b"," else rest


def _read_first(text: bytes) -> FirstEvent | None:
    """Return the first value of the text, with what is bad inside its values replaced; None if it is malformed."""
    text = mend_values(text).lstrip()
    try:
        _RAW.decode(text)
    except RecursionError:
        return None
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise CutError from None
        if "trailing characters" not in str(error):
            return None
        end = text.rfind(b"}", 0, position_of(error) - 1) + 1  # the byte is behind the first that is too much
        return FirstEvent(text[:end], text[end:])
    return FirstEvent(text, b"")


def position_of(error: msgspec.DecodeError) -> int:
    """Return the byte that an error of the decoder names; 0 if none."""
    found = _BYTE_OF_ERROR.search(str(error))
    return int(found.group(1)) if found else 0
