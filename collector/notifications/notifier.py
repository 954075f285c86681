"""Notify the receivers of the settings of incidents: make a channel for each, and end them in a limited time."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rankscope.collector.config import CollectorConfig, find_beside_store, find_store
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.notifications.channel import Channel, Deliver, Surroundings
from rankscope.collector.notifications.node_finder import NodeFinder
from rankscope.collector.notifications.notified import NotifyRules
from rankscope.collector.notifications.webhook import make_webhook
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import ChannelCounts
from rankscope.measure.clock import Clock
from rankscope.measure.units import ns_to_s

LOG = logging.getLogger("rankscope.collector")

WEBHOOK: Final = "webhook"
STOP_S_MAX: Final = 5.0
"""Time at the end of the collector in which events that were not tried yet are delivered, all channels together."""
Receivers = Mapping[str, Deliver]


class Notifier:
    """All channels of a collector. Without a receiver in the settings there is none, and nothing is done."""

    def __init__(self, receivers: Receivers, around: Surroundings, store: Path | None) -> None:
        """`store` is the file beside which is kept what was delivered; None: nothing is kept."""
        self._has_store = store is not None
        self._channels = tuple(
            Channel(name, deliver, around, None if store is None else find_file(store, name))
            for name, deliver in receivers.items()
        )

    @property
    def counts(self) -> dict[str, ChannelCounts]:
        """Events by channel. Any thread."""
        return {channel.name: channel.counts for channel in self._channels}

    def start(self) -> None:
        """Begin to deliver."""
        for channel in self._channels:
            channel.start()

    def stop(self, seconds: float = STOP_S_MAX) -> None:
        """Deliver what was not tried yet, for at most so long, and log what is left."""
        end_s = time.monotonic() + seconds
        for channel in self._channels:
            channel.begin_stop()
        for channel in self._channels:
            left = channel.finish_stop(max(0.0, end_s - time.monotonic()))
            if left:
                then = "the next collector of this store delivers them" if self._has_store else "they are lost"
                LOG.warning("%s: %d events are not delivered; %s", channel.name, left, then)


def read_receivers(config: CollectorConfig, clock: Clock) -> Receivers:
    """Return the receivers of the settings, by the names of their channels. Raises SettingError for those that cannot
    be used.
    """
    receivers: dict[str, Deliver] = {}
    if config.notify_webhook_url:
        receivers[WEBHOOK] = make_webhook(config, lambda: ns_to_s(clock.wall_ns()))
    return receivers


def make_notifier(
    config: CollectorConfig,
    receivers: Receivers,
    journal: Journal,
    *,
    find_run: Callable[[str], RunState | None],
    read_severities: Callable[[], Mapping[str, str]],
    clock: Clock,
    faults: FaultLog,
) -> Notifier:
    """Return the notifier of these receivers about the incidents of the journal. Of a store that is not usable now,
    which may be that of another collector, the files beside it are not touched.
    """
    around = Surroundings(
        read_incidents=lambda: journal.incidents,
        find_nodes=NodeFinder(find_store(config), find_run, faults).find,
        clock=clock,
        faults=faults,
        rules=NotifyRules(config.notify_severity_min, config.notify_interval_s),
        read_severities=read_severities,
    )
    return Notifier(receivers, around, None if journal.database is None else find_beside_store(config))


def find_file(store: Path, channel: str) -> Path:
    """Return the file beside a store that keeps what a channel was notified of.

    >>> find_file(Path("/var/runs.db"), "webhook").name
    'runs.db-notified-webhook.json'
    """
    return store.with_name(f"{store.name}-notified-{channel}.json")
