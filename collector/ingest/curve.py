"""The keys of the collector's side, and whom they let in."""

from collections.abc import Callable
from typing import NamedTuple

from rankscope.collector.ingest.relays import Relays
from rankscope.measure.key_files import KeyPair


def is_nobody(_key: str) -> bool:
    """Whether a key is a relay's, where there are no relays."""
    return False


class CurveServer(NamedTuple):
    """The collector's own pair of keys, whether a client's public key may connect, and whether it is a relay's, which
    may speak for many ranks.
    """

    pair: KeyPair
    is_allowed: Callable[[str], bool]
    may_relay: Callable[[str], bool] = is_nobody

    def make_relays(self) -> Relays:
        """The relays that these keys let in."""
        return Relays(has_keys=True, may_relay=self.may_relay, is_allowed=self.is_allowed)
