"""Read the nodes of a store, and keep them for those who ask often."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from rankscope.collector.incidents.nodes import NodeList, NodeRecord, add_preflights, list_histories, rank_nodes
from rankscope.collector.incidents.store import read_store
from rankscope.collector.storage.preflights import read_last_preflights
from rankscope.collector.storage.run_reader import read_placed_ranks
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import UnavailableError

KEPT_S: Final = 60.0
"""For so long a list is returned again: reading one takes a second or more where there are 65,536 ranks."""


def read_nodes(address: StoreAddress) -> NodeList:
    """Return the nodes of a store, whether or not a collector writes to it. Raises UnavailableError."""
    placed = read_placed_ranks(address)
    found = add_preflights(rank_nodes(placed.runs, read_store(address).incidents), read_last_preflights(address))
    return msgspec.structs.replace(found, runs_left_out=placed.runs_left_out)


def read_histories(address: StoreAddress) -> Mapping[int, tuple[str, ...]]:
    """Return by the id of an incident of a store how often the nodes that it blames have held up a run, in words.
    Raises UnavailableError.
    """
    return list_histories(read_nodes(address))


class KeptNodes:
    """The nodes of a store, read again after KEPT_S. Any thread; one at a time reads. `contain` is called while an
    error of the collector is handled.
    """

    def __init__(
        self,
        address: StoreAddress,
        read_clock_s: Callable[[], float] = time.monotonic,
        contain: Callable[[str], object] = lambda _what: None,
    ) -> None:
        self._address = address
        self._read_clock_s = read_clock_s
        self._contain = contain
        self._reading = threading.Lock()
        self._refreshing = threading.Lock()
        self._kept: NodeList | None = None
        self._kept_since_s = 0.0

    @property
    def latest(self) -> NodeList | None:
        """The list that was read last; None before the first, and where the store could not be read. Does not wait."""
        return self._kept

    def read(self) -> NodeList:
        """Return the list that was read last, or read one. Raises UnavailableError."""
        with self._reading:
            kept = self._kept
            if kept is None or self._is_outdated():
                self._kept = None
                kept = self._kept = read_nodes(self._address)
                self._kept_since_s = self._read_clock_s()
            return kept

    def show(self, node: str | None) -> NodeList | NodeRecord:
        """Return the list, or its record of the node of this name: zeros where no stored run was on it. Raises
        UnavailableError.
        """
        found = self.read()
        unused = NodeRecord(node=node or "", runs=0, runs_held_up=0, ratio_low=0.0)
        return found if node is None else next((one for one in found.nodes if one.node == node), unused)

    def read_histories(self) -> Mapping[int, tuple[str, ...]]:
        """Return the history of the nodes that an incident blames, by its id; none where the store cannot be read."""
        try:
            return list_histories(self.read())
        except UnavailableError:  # the log of the collector has it
            return {}

    def refresh(self) -> threading.Thread | None:
        """Begin to read the list on a thread, where it is outdated and not being read; return the thread."""
        if not self._is_outdated() or not self._refreshing.acquire(blocking=False):
            return None
        thread = threading.Thread(target=self._refresh, name="rankscope-nodes", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started
            self._refreshing.release()
            return None
        return thread

    def _is_outdated(self) -> bool:
        return self._kept is None or self._read_clock_s() - self._kept_since_s >= KEPT_S

    def _refresh(self) -> None:
        try:
            with contextlib.suppress(UnavailableError):  # the log of the collector has it
                self.read()
        except Exception:  # noqa: BLE001 - it is contained
            self._contain("the list of nodes")
        finally:
            self._refreshing.release()
