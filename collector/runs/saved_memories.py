"""Save what detectors remember of the open findings of a run for the next collector."""

from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.collector.detect.finding_memory import MEMORY_VERSION, FindingMemory


class KeptMemory(msgspec.Struct, frozen=True):
    """What is to be known of a finding that was open, beside what it told: what its detector remembers, and what the
    steps up to its last one have lost to it, in ns.
    """

    memory: FindingMemory
    charged_ns: float = 0.0


class SavedMemories(msgspec.Struct, frozen=True, kw_only=True):
    """The memories of the findings of a run that were open, by their number, as this version writes them."""

    version: int = MEMORY_VERSION
    by_number: msgspec.Raw = msgspec.Raw(b"{}")

    @classmethod
    def of(cls, kept: Mapping[int, KeptMemory]) -> "SavedMemories":
        """Return their saved form."""
        return cls(by_number=msgspec.Raw(msgspec.json.encode(kept)))

    def read(self) -> dict[int, KeptMemory]:
        """Return them; none of another version, or where they cannot be read: their findings are found anew."""
        if self.version != MEMORY_VERSION:
            return {}
        try:
            return msgspec.json.decode(self.by_number, type=dict[int, KeptMemory])
        except msgspec.DecodeError:
            return {}


NO_MEMORIES: Final = SavedMemories()
