"""The address of a rank's collector, and the keys of the connection to it."""

from collections.abc import Mapping

import msgspec

from rankscope.agent.config import AgentConfig, LaunchConfig, describe_not_started, read_launch_config
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import ClientKeys, is_key, read_key_pair, read_public_key
from rankscope.measure.shards import choose_collector, parse_collectors


class CollectorAddress(msgspec.Struct, frozen=True):
    """A collector. `endpoint` is tcp://HOST:PORT; without `keys` the connection is not encrypted."""

    endpoint: str
    keys: ClientKeys | None = None

    def to_text(self) -> str:
        """Return this address as JSON for the rendezvous store.

        The secret key is included: a process that can read the store can join the training anyway.
        """
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "CollectorAddress":
        """Parse the result of `to_text`. Raise ValueError for any other text."""
        try:
            address = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:  # a ValueError itself since msgspec 0.21
            raise ValueError(str(error)) from error
        keys = address.keys
        if keys is not None and not all(map(is_key, (keys.collector, keys.own.public, keys.own.secret))):
            raise ValueError("it contains a malformed key")
        return address


def read_address(config: AgentConfig, run: str) -> CollectorAddress | None:
    """Return the configured collector, of several the one that `run` hashes to; None: rank 0 starts one.

    Raise SettingError for unusable keys, and for one key file without the other.
    """
    if bool(config.key_file) != bool(config.collector_key_file):
        given, lacking = ("key_file", "collector_key_file") if config.key_file else ("collector_key_file", "key_file")
        raise SettingError(
            f"{given} is {getattr(config, given)!r} ({config.source(given)}) and {lacking} is empty: an encrypted "
            "connection needs both. `rankscope keys` makes them where the collector is set up."
        )
    endpoints = parse_collectors(config.collector)
    if not endpoints:
        return None
    endpoint = choose_collector(run, endpoints)
    if not config.key_file:
        return CollectorAddress(endpoint)
    collector = read_public_key(config.collector_key_file, "collector_key_file")
    return CollectorAddress(endpoint, ClientKeys(collector, read_key_pair(config.key_file, "key_file")))


def check_launch_config(environment: Mapping[str, str], given: Mapping[str, str]) -> LaunchConfig:
    """Return the settings as `read_launch_config` does, with their key files checked. Never raise."""
    found = read_launch_config(environment, given)
    if not found.is_usable or not found.config.enabled:
        return found
    try:
        read_address(found.config, run="")
    except SettingError as error:
        notes = (*found.notes, describe_not_started(str(error)))
        return found._replace(is_usable=False, mistakes=(*found.mistakes, str(error)), notes=notes)
    return found
