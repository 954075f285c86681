"""Where a rank's collector is, and with which keys it is spoken to."""

from collections.abc import Mapping

import msgspec

from rankscope.agent.config import AgentConfig, LaunchConfig, describe_not_started, read_launch_config
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import ClientKeys, is_key, read_key_pair, read_public_key
from rankscope.measure.shards import choose_collector, parse_collectors


class CollectorAddress(msgspec.Struct, frozen=True):
    """`endpoint` is tcp://HOST:PORT; without `keys` the wire is not encrypted."""

    endpoint: str
    keys: ClientKeys | None = None

    def to_text(self) -> str:
        """As the rendezvous carries it, with the secret key: who reads the job's store can take part in the job too."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "CollectorAddress":
        """The other way. Raises ValueError for any other text."""
        try:
            address = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:  # a ValueError itself since msgspec 0.21
            raise ValueError(str(error)) from error
        keys = address.keys
        if keys is not None and not all(map(is_key, (keys.collector, keys.own.public, keys.own.secret))):
            raise ValueError("what stands in place of a key is none")
        return address


def read_address(config: AgentConfig, run: str) -> CollectorAddress | None:
    """The collector that the settings name, of several the one that the run belongs to; None: rank 0 starts one. Raises
    SettingError for keys that cannot be used, or one without the other.
    """
    if bool(config.key_file) != bool(config.collector_key_file):
        given, lacking = ("key_file", "collector_key_file") if config.key_file else ("collector_key_file", "key_file")
        raise SettingError(
            f"{given} is {getattr(config, given)!r} ({config.source(given)}) and {lacking} is empty: the encrypted "
            "wire needs both. `rankscope keys` makes them where the collector is set up."
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
    """Return the settings as `read_launch_config` does, with the keys that they name looked at. Never raises."""
    found = read_launch_config(environment, given)
    if not found.is_usable or not found.config.enabled:
        return found
    try:
        read_address(found.config, run="")
    except SettingError as error:
        notes = (*found.notes, describe_not_started(str(error)))
        return found._replace(is_usable=False, mistakes=(*found.mistakes, str(error)), notes=notes)
    return found
