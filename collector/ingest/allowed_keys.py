"""Who may send reports: the public keys in a folder, read anew while the collector runs."""

import logging
from pathlib import Path
from typing import Final

from rankscope.measure.clock import Clock
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import read_public_key
from rankscope.measure.units import NS_PER_S

LOG = logging.getLogger("rankscope.collector")

SETTING: Final = "allowed_keys"
READ_AGAIN_NS: Final = NS_PER_S
"""A storm of connections reads the folder once a second, and a key that was added is taken within one."""
KEYS_MAX: Final = 10_000
"""Files that are looked at. Reading so many takes 0.3 s; a hundred, 3 ms."""


class AllowedKeys:
    """The public keys in the files `*.pub` of a folder. Raises SettingError when there is none that can be read.

    A folder that cannot be read later changes nothing: the keys of before stay, and the log says why.
    """

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = Path(folder)
        self._clock = clock
        self._keys = self._read()
        self._read_ns = clock.monotonic_ns()
        self._problem = ""

    def holds(self, key: str) -> bool:
        """Whether a client with this key may connect."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._read_ns >= READ_AGAIN_NS:
            self._read_ns = now_ns
            self._refresh()
        return key in self._keys

    def _refresh(self) -> None:
        problem = ""
        try:
            self._keys = self._read()
        except SettingError as error:
            problem = str(error)
        if problem and problem != self._problem:
            LOG.error("%s The keys of before stay allowed.", problem)
        self._problem = problem

    def _read(self) -> frozenset[str]:
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix == ".pub" and path.name[0] != ".")
        except OSError as error:
            raise SettingError(f"{SETTING} is {str(self._folder)!r}, which cannot be read: {error}.") from error
        if not 0 < len(paths) <= KEYS_MAX:
            raise SettingError(
                f"{SETTING} is {str(self._folder)!r}, in which {len(paths)} files end in .pub; it must be from 1 to "
                f"{KEYS_MAX}. `rankscope keys` makes such a folder."
            )
        return frozenset(read_public_key(str(path), SETTING) for path in paths)
