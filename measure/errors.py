"""Define the errors that this project raises deliberately.

    RankscopeError
    |-- SettingError      a configuration value is unusable; names key, value, limit and where the value came from
    |-- DecodeError       bytes are not a frame we accept; `reason` is a DecodeReason and becomes a metric label
    |-- TraceError        a profiler trace cannot be read; names the byte of the inflated file, when that is known
    |   |-- NotATraceError    the file is intact JSON, but not a trace
    |   `-- CutOffError       the file ends too early; what was read before it is good
    `-- UnavailableError  something outside the program is missing (a port, a file, a library); names the cure

Inside a training process none of these leaves the agent: `agent/guard.py` counts them, and problems with the settings
are reported at launch. The collector does not start with settings that cannot be used.
"""

from enum import Enum


class RankscopeError(Exception):
    """The root of every error this project raises on purpose."""


class SettingError(RankscopeError):
    """A configuration value cannot be used."""


class UnavailableError(RankscopeError):
    """Something outside the program is missing, for example a port, a file or a library."""


class TraceError(RankscopeError):
    """A profiler trace cannot be read. `byte` counts in the inflated file."""

    def __init__(self, reason: str, *, byte: int | None = None) -> None:
        super().__init__(reason if byte is None else f"{reason} (at byte {byte:,})")
        self.byte = byte


class NotATraceError(TraceError):
    """Sound JSON that is no Kineto trace of one rank. Skipped silently in a folder; an error if the user named this
    file.
    """


class CutOffError(TraceError):
    """A compressed trace that ends too early. What was inflated before its end is good."""


class DecodeReason(Enum):
    """Reason why bytes were refused. The value is the label `reason` of `rankscope_frames_refused_total`."""

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
