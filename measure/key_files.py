"""Keys of the encrypted wire (CURVE), and the files they are in. Both programs read them in the same way.

A file is what ZeroMQ's other tools call a certificate, as text:

    curve
        public-key = "40 characters of Z85"
        secret-key = "40 characters of Z85"

One without a secret key may be shown to anybody. One with a secret key is refused when others may read it, as ssh does;
its group may, because that is how Kubernetes hands a secret to a process that is not root.
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
"""As texts: to compile them takes 0.7 ms of each training process's start, and many have no keys."""
_LINE = r'^\s*(public-key|secret-key)\s*=\s*"(' + _KEY + r')"\s*$'


class KeyPair(msgspec.Struct, frozen=True):
    """A public key and its secret one, each KEY_LENGTH characters of Z85. Showing it shows the public one only."""

    public: str
    secret: str

    def __repr__(self) -> str:
        """Without the secret: what is shown ends up in logs."""
        return f"KeyPair({self.public!r})"


class ClientKeys(msgspec.Struct, frozen=True):
    """What an agent needs on the encrypted wire: the collector's public key, and a pair of its own."""

    collector: str
    own: KeyPair


def is_key(text: str) -> bool:
    """Whether the text can be a key.

    >>> is_key("too short")
    False
    """
    return re.fullmatch(_KEY, text) is not None


def format_key_file(public: str, secret: str = "") -> str:
    """The text of a key file.

    >>> print(format_key_file("a" * 40), end="")
    curve
        public-key = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    """
    lines = ["curve", f'    public-key = "{public}"']
    if secret:
        lines.append(f'    secret-key = "{secret}"')
    return "\n".join(lines) + "\n"


def read_public_key(path: str, setting: str) -> str:
    """The public key in a file. `setting` names the setting that named the file, for the SettingError this raises."""
    keys = _find_keys(_read(path, setting))
    if "public-key" not in keys:
        raise SettingError(f"{setting} is {path!r}, in which there is no public key. {_CURE}")
    return keys["public-key"]


def read_key_pair(path: str, setting: str) -> KeyPair:
    """The pair in a file that nobody else may read. Raises SettingError, as `read_public_key` does."""
    keys = _find_keys(read_private_text(path, setting))
    if len(keys) < 2:  # noqa: PLR2004 - a public one and a secret one
        raise SettingError(f"{setting} is {path!r}, in which there is no pair of keys. {_CURE}")
    return KeyPair(keys["public-key"], keys["secret-key"])


def read_private_text(path: str, setting: str) -> str:
    """The text of a file that holds a secret. Raises SettingError when others may read it, or nobody can."""
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
