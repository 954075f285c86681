"""Read and write keys of encrypted connections (CURVE). Both programs read them in the same way.

A key file has the format of ZeroMQ's certificates, as text:

    curve
        public-key = "40 characters of Z85"
        secret-key = "40 characters of Z85"

A file without a secret key is public. One with a secret key is refused if others can read it, as ssh does; its group
may, because Kubernetes hands a secret that way to a process that is not root.
"""

import os
import re
import stat

import msgspec

from rankscope.measure.errors import SettingError

KEY_LENGTH = 40
"""32 bytes in Z85, ZeroMQ's way of writing keys: 5 characters for 4 bytes."""

FILE_BYTES_MAX = 16 * 1024
"""A key file has 200 bytes; what is larger is another file in its place."""

PRIVATE_FILE = 0o600
FORBIDDEN_MODE = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO

_Z85 = r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]"
_KEY = _Z85 + r"{40}"
"""Patterns as texts: compiling them takes 0.7 ms of each training process's start, and many runs have no keys."""
_LINE = r'^\s*(public-key|secret-key)\s*=\s*"(' + _KEY + r')"\s*$'


class KeyPair(msgspec.Struct, frozen=True):
    """A public key and its secret key, each KEY_LENGTH characters of Z85. The repr contains the public key only."""

    public: str
    secret: str

    def __repr__(self) -> str:
        """Return the pair without its secret, which must not appear in logs."""
        return f"KeyPair({self.public!r})"


class ClientKeys(msgspec.Struct, frozen=True):
    """Keys of an agent: the collector's public key, and the agent's own pair."""

    collector: str
    own: KeyPair


def is_key(text: str) -> bool:
    """Return whether the text can be a key.

    >>> is_key("too short")
    False
    """
    return re.fullmatch(_KEY, text) is not None


def format_key_file(public: str, secret: str = "") -> str:
    """Return the text of a key file.

    >>> print(format_key_file("a" * 40), end="")
    curve
        public-key = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    """
    lines = ["curve", f'    public-key = "{public}"']
    if secret:
        lines.append(f'    secret-key = "{secret}"')
    return "\n".join(lines) + "\n"


def read_public_key(path: str, setting: str) -> str:
    """Return the public key in a file. `setting` names the setting that named the file, for the SettingError this
    raises.
    """
    keys = _find_keys(_read(path, setting))
    if "public-key" not in keys:
        raise SettingError(f"{setting} is {path!r}, in which there is no public key. {_CURE}")
    return keys["public-key"]


def read_key_pair(path: str, setting: str) -> KeyPair:
    """Return the pair in a file only its owner and group may read. Raises SettingError, as `read_public_key` does."""
    keys = _find_keys(read_private_text(path, setting))
    if len(keys) < 2:  # noqa: PLR2004 - a public one and a secret one
        raise SettingError(f"{setting} is {path!r}, in which there is no pair of keys. {_CURE}")
    return KeyPair(keys["public-key"], keys["secret-key"])


def read_private_text(path: str, setting: str) -> str:
    """Return the text of a file with a secret. Raises SettingError if it is unreadable or others may access it."""
    return _read(path, setting, private=True)


_CURE = "Name a file that `rankscope keys` has made."


def _find_keys(text: str) -> dict[str, str]:
    return dict(re.findall(_LINE, text, re.MULTILINE))


def _read(path: str, setting: str, *, private: bool = False) -> str:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise SettingError(
                f"{setting} is {path!r}, which has more than {FILE_BYTES_MAX} bytes: it is another file."
            )
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{setting} is {path!r}, which cannot be read: {error}. Name a readable file.") from error
    if private and mode & FORBIDDEN_MODE:
        raise SettingError(
            f"{setting} is {path!r}, which holds a secret and has the mode {mode:04o}: others could read it. "
            f"chmod 600 {path}"
        )
    return text
