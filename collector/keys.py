"""Make the keys of encrypted connections, in a folder:

    collector.key   the collector's pair             only its owner may read it
    collector.pub   the collector's public key       for every agent
    NAME.key        a client's pair                  for the agents of one user or team
    allowed/NAME.pub   the client's public key       may send reports: the collector reads this folder

Existing files are overwritten only with --force. With --keep only missing ones are made, as a restarted job needs.
"""

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import zmq

from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.key_files import (
    PRIVATE_FILE,
    ClientKeys,
    KeyPair,
    format_key_file,
    read_key_pair,
    read_public_key,
)

COLLECTOR: Final = "collector"
DEFAULT_CLIENT: Final = "agent"
ALLOWED: Final = "allowed"
RELAYS: Final = "relays"
"""The folder in ALLOWED with the keys of relays, which may send the messages of many ranks."""
KEYS_FOLDER: Final = 0o711
"""Mode of the folder: other users may open files in it whose names they know. So a collector of another user can read
`allowed`, and agents can read collector.pub. Secret keys are protected by the modes of their own files."""

SEARCHED_BY_OTHERS: Final = 0o011
WRITTEN_BY_OTHERS: Final = 0o022

PUBLIC_FOLDER: Final = 0o755
PUBLIC_FILE: Final = 0o644

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def make_key_pair() -> KeyPair:
    """Return a new pair. Raises UnavailableError where ZeroMQ was built without CURVE."""
    try:
        public, secret = zmq.curve_keypair()
    except zmq.ZMQError as error:
        raise UnavailableError("this ZeroMQ has no CURVE (libsodium): install pyzmq's own wheels") from error
    return KeyPair(public.decode(), secret.decode())


class RunKeys(NamedTuple):
    """Keys of one run that are in no file: the pair of its collector, and one pair for all of its ranks."""

    collector: KeyPair
    ranks: KeyPair

    @classmethod
    def make(cls) -> "RunKeys":
        """Return new keys."""
        return cls(make_key_pair(), make_key_pair())

    def is_allowed(self, key: str) -> bool:
        """Return whether a client with this public key is a rank of the run."""
        return key == self.ranks.public

    def for_ranks(self) -> ClientKeys:
        """Return the keys that each rank needs."""
        return ClientKeys(self.collector.public, self.ranks)


def make_keys(folder: Path, clients: Sequence[str], *, relays: Sequence[str] = (), force: bool) -> list[Path]:
    """Make the keys of these clients and relays, and the collector's where it has none; without names those of the
    client `agent` and, with `force`, new ones of the collector. Return the files that were written.

    Raises SettingError for an invalid name, or an existing file that would be overwritten without `force`; then nothing
    has been written. Raises UnavailableError when the folder cannot be written to.
    """
    _check_names(clients, relays)
    named = [*clients, *relays]
    secrets = {name: folder / f"{name}.key" for name in (named or [DEFAULT_CLIENT])}
    if not (folder / f"{COLLECTOR}.key").exists() or not named:
        secrets[COLLECTOR] = folder / f"{COLLECTOR}.key"
    publics = {name: _find_public(folder, name, is_relay=name in relays) for name in secrets}
    present = [path for path in (*secrets.values(), *publics.values()) if path.exists()]
    if present and not force:
        raise SettingError(
            f"{present[0]} exists already; --keep makes only missing keys, --force replaces them, --client NAME adds "
            "another client"
        )
    try:
        _make_folders(folder, with_relays=bool(relays))
        for name, path in secrets.items():
            _write_pair(path, publics[name])
    except OSError as error:
        raise UnavailableError(f"keys cannot be written to {folder}: {error}. Name a folder of your own.") from error
    return sorted([*secrets.values(), *publics.values()])


def complete_keys(folder: Path, clients: Sequence[str], *, relays: Sequence[str] = ()) -> list[Path]:
    """Make the missing keys of the collector, these clients and relays; without names those of the client `agent`.
    Return the files that were written, none where all exist.

    For a secret key without its public one, as a killed program leaves it, the public one is written. Raises
    SettingError for an invalid name, for a public key without its secret one or of another pair, and for a secret key
    that other users may read; UnavailableError as `make_keys` does.
    """
    _check_names(clients, relays)
    written: list[Path] = []
    try:
        _make_folders(folder, with_relays=bool(relays))
        for name in [COLLECTOR, *([*clients, *relays] or [DEFAULT_CLIENT])]:
            written += _complete_pair(folder / f"{name}.key", _find_public(folder, name, is_relay=name in relays))
    except OSError as error:
        raise UnavailableError(f"keys cannot be written to {folder}: {error}. Name a folder of your own.") from error
    return sorted(written)


def _complete_pair(secret: Path, public: Path) -> list[Path]:
    """Write the missing files of a pair, and return them."""
    if not secret.exists():
        if public.exists():
            raise SettingError(f"{public} exists and {secret} does not: restore it, or remove {public.name} as well")
        _write_pair(secret, public)
        return [secret, public]
    pair = read_key_pair(str(secret), f"{secret.stem}'s key file")
    if not public.exists():
        _write(public, format_key_file(pair.public), PUBLIC_FILE)
        return [public]
    if read_public_key(str(public), f"{public.stem}'s public key file") != pair.public:
        raise SettingError(f"{public} is not the public key of {secret}: remove the wrong one of them, or both")
    return []


def _write_pair(secret: Path, public: Path) -> None:
    pair = make_key_pair()
    _write(secret, format_key_file(pair.public, pair.secret), PRIVATE_FILE)
    _write(public, format_key_file(pair.public), PUBLIC_FILE)


def _make_folders(folder: Path, *, with_relays: bool) -> None:
    """Make the folder and those of public keys in it, with fixed modes whatever the umask is.

    An existing folder may be a home or /tmp: other users get the right to search it and lose that to write to it, while
    its readers stay. One with the sticky bit stays as it is.
    """
    wanted = KEYS_FOLDER
    if folder.is_dir():
        mode = stat.S_IMODE(folder.stat().st_mode)
        wanted = mode if mode & stat.S_ISVTX else (mode | SEARCHED_BY_OTHERS) & ~WRITTEN_BY_OTHERS
    folder.mkdir(KEYS_FOLDER, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) != wanted:
        folder.chmod(wanted)
    for public in (folder / ALLOWED, folder / ALLOWED / RELAYS) if with_relays else (folder / ALLOWED,):
        public.mkdir(exist_ok=True)
        public.chmod(PUBLIC_FOLDER)


def _check_names(clients: Sequence[str], relays: Sequence[str]) -> None:
    for option, name in [*(("--client", name) for name in clients), *(("--relay", name) for name in relays)]:
        if _NAME.fullmatch(name) is None or name == COLLECTOR or (option == "--client" and name in relays):
            raise SettingError(
                f"{option} is {name!r}; it must be letters, digits, - and _, 64 at most, not {COLLECTOR!r}, and not "
                "the name of a client and of a relay"
            )


def _find_public(folder: Path, name: str, *, is_relay: bool) -> Path:
    if name == COLLECTOR:
        return folder / f"{name}.pub"
    return (folder / ALLOWED / RELAYS if is_relay else folder / ALLOWED) / f"{name}.pub"


def _write(path: Path, text: str, mode: int) -> None:
    """Write a new file that never had a wider mode, in the place of the old one."""
    new = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(file, mode)  # whatever the umask is
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)
    new.rename(path)
