"""The errors this project raises on purpose.

    RankscopeError
    |-- SettingError      a configuration value is unusable; says key, value, limit and where the value came from
    |-- DecodeError       bytes are not a frame we accept; `reason` is a DecodeReason and becomes a metric label
    |-- TraceError        a profiler trace cannot be read; says at which byte of the inflated file, when that is known
    |   `-- NotATraceError    the file is sound, and something else
    `-- UnavailableError  something of the outside world is not there (a port, a file, a library); says what to do

Inside a training process none of these leaves the agent: `agent/guard.py` counts them, and what is wrong with the
settings is said at launch. The collector does not start with settings that cannot be used.
"""

from enum import Enum


class RankscopeError(Exception):
    """The root of every error this project raises on purpose."""


class SettingError(RankscopeError):
    """A configuration value cannot be used."""


class UnavailableError(RankscopeError):
    """Something of the outside world is not there."""


class TraceError(RankscopeError):
    """A profiler trace cannot be read. `byte` counts in the inflated file."""

    def __init__(self, reason: str, *, byte: int | None = None) -> None:
        super().__init__(reason if byte is None else f"{reason} (at byte {byte:,})")
        self.byte = byte


class NotATraceError(TraceError):
    """Sound JSON, but no Kineto trace of one rank: left out without a word when nobody asked for this very file."""


class DecodeReason(Enum):
    """Why bytes were refused. The value is the label `reason` of `rankscope_frames_refused_total`."""

    TOO_SHORT = "too_short"
    TOO_LARGE = "too_large"
    BAD_MAGIC = "bad_magic"
    PROTOCOL_TOO_OLD = "protocol_too_old"
    PROTOCOL_TOO_NEW = "protocol_too_new"
    UNKNOWN_KIND = "unknown_kind"
    BAD_BODY = "bad_body"
    BAD_TABLE = "bad_table"


class DecodeError(RankscopeError):
    """Bytes are not a frame we accept."""

    def __init__(self, reason: DecodeReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
