"""Hold the collector's own keys, and read the folder of client keys that may connect."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rankscope.collector.ingest.relays import Relays
from rankscope.collector.keys import RELAYS
from rankscope.measure.clock import Clock
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import KeyPair, read_public_key
from rankscope.measure.units import NS_PER_S


def is_no_relay(_key: str) -> bool:
    """Return False: no key is that of a relay."""
    return False


class CurveServer(NamedTuple):
    """The collector's own pair of keys, whether a client's public key may connect, and whether it is that of a relay,
    which may send the messages of many ranks.
    """

    pair: KeyPair
    is_allowed: Callable[[str], bool]
    may_relay: Callable[[str], bool] = is_no_relay

    def make_relays(self) -> Relays:
        """Return the relays of a collector with these keys."""
        return Relays(has_keys=True, may_relay=self.may_relay, is_allowed=self.is_allowed)


LOG = logging.getLogger("rankscope.collector")

SETTING: Final = "allowed_keys"
READ_AGAIN_NS: Final = NS_PER_S
"""However many connections there are, the folder is read once a second; an added key is allowed within one."""
KEYS_MAX: Final = 10_000
"""Most files in the folder: reading them takes 0.3 s, a hundred 3 ms."""


class AllowedKeys:
    """The public keys in the files `*.pub` of a folder, and of its folder of relays where there is one. Raises
    SettingError when none can be read.

    When the folder cannot be read later, the previous keys stay allowed and the reason is logged.
    """

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = Path(folder)
        self._clock = clock
        self._relays: frozenset[str] = frozenset()
        self._keys: frozenset[str] = frozenset()
        self._read()
        self._read_ns = clock.monotonic_ns()
        self._problem = ""

    def is_allowed(self, key: str) -> bool:
        """Return whether a client with this key may connect."""
        self._refresh_when_due()
        return key in self._keys or key in self._relays

    def may_relay(self, key: str) -> bool:
        """Return whether a client with this key may relay the messages of others."""
        self._refresh_when_due()
        return key in self._relays

    def _refresh_when_due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._read_ns >= READ_AGAIN_NS:
            self._read_ns = now_ns
            self._refresh()

    def _refresh(self) -> None:
        problem = ""
        try:
            self._read()
        except SettingError as error:
            problem = str(error)
        if problem and problem != self._problem:
            LOG.error("%s Keeping the previous allowed keys.", problem)
        self._problem = problem

    def _read(self) -> None:
        paths = self._find_files(self._folder)
        relay_paths = self._find_files(self._folder / RELAYS, is_optional=True)
        if not 0 < len(paths) + len(relay_paths) <= KEYS_MAX:
            raise SettingError(
                f"{SETTING} is {str(self._folder)!r}, in which {len(paths) + len(relay_paths)} files end in .pub; it "
                f"must be from 1 to {KEYS_MAX}. `rankscope keys` makes such a folder."
            )
        keys, relay_keys = (
            frozenset(read_public_key(str(path), SETTING) for path in found) for found in (paths, relay_paths)
        )
        self._keys, self._relays = keys, relay_keys

    def _find_files(self, folder: Path, *, is_optional: bool = False) -> list[Path]:
        try:
            return sorted(path for path in folder.iterdir() if path.suffix == ".pub" and path.name[0] != ".")
        except OSError as error:
            if is_optional and isinstance(error, (FileNotFoundError, NotADirectoryError)):
                return []
            raise SettingError(f"{SETTING} is {str(self._folder)!r}, which cannot be read: {error}.") from error
