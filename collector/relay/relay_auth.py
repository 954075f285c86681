"""Read the keys that a relay uses towards its collector and its ranks."""

import logging
from typing import NamedTuple

from rankscope.collector.ingest.curve import AllowedKeys, CurveServer
from rankscope.collector.relay.config import RelayConfig
from rankscope.collector.wire_auth import is_loopback
from rankscope.measure.clock import Clock
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.settings import IPC

LOG = logging.getLogger("rankscope.relay")


class RelayKeys(NamedTuple):
    """`collector`: the keys of the relay as a client; `ranks`: as a server. None: that connection is not encrypted."""

    collector: ClientKeys | None
    ranks: CurveServer | None


def read_keys(config: RelayConfig, clock: Clock) -> RelayKeys:
    """Return the keys of both sides. Raises SettingError for keys that cannot be used, one without the other, or an
    address that other machines can reach without keys and without `insecure`.
    """
    if bool(config.key_file) != bool(config.collector_key_file):
        given, lacking = ("key_file", "collector_key_file") if config.key_file else ("collector_key_file", "key_file")
        raise SettingError(
            f"{given} is {getattr(config, given)!r} ({config.source(given)}) and {lacking} is empty: encrypted "
            "connections need both. `rankscope keys FOLDER --relay NAME` makes them where the collector is set up."
        )
    if config.allowed_keys and not config.key_file:
        raise SettingError(
            f"allowed_keys is {config.allowed_keys!r} ({config.source('allowed_keys')}) and key_file is empty: ranks "
            "with keys must know the relay's."
        )
    collector = ranks = None
    if config.key_file:
        own = read_key_pair(config.key_file, "key_file")
        collector = ClientKeys(read_public_key(config.collector_key_file, "collector_key_file"), own)
        if config.allowed_keys:
            ranks = CurveServer(own, AllowedKeys(config.allowed_keys, clock).is_allowed)
    if ranks is None:
        _check_open(config)
    return RelayKeys(collector, ranks)


def _check_open(config: RelayConfig) -> None:
    if config.listen.startswith(IPC) or is_loopback(config.listen):
        return
    if not config.insecure:
        raise SettingError(
            f"listen is {config.listen} ({config.source('listen')}), which other machines can reach, and ranks need no "
            "keys: anybody there could send reports. Set allowed_keys; --insecure (insecure = true) starts without."
        )
    LOG.warning("insecure is set: any client that can reach %s can send reports in the name of any rank", config.listen)
