"""Finds the collector of this rank on a thread of its own: the configured one, or one that rank 0 starts.

Whatever goes wrong is logged or counted, and training continues without a collector.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rankscope.agent.collector_address import CollectorAddress, read_address
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard, log_line
from rankscope.agent.own_thread import OwnThread
from rankscope.agent.shutdown.torch_threads import TorchCallGate
from rankscope.measure.errors import RankscopeError
from rankscope.measure.identity import RankIdentity

if TYPE_CHECKING:
    from rankscope.agent.embedded import EmbeddedCollector

PART = "connect"


class ConnectThread:
    """The thread that finds the collector, calls `on_found` with its address and whether it is a configured one, and
    then ends.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        environment: Mapping[str, str],
        guard: Guard,
        on_found: Callable[[CollectorAddress, bool], None],
    ) -> None:
        self._config = config
        self._identity = identity
        self._environment = environment
        self._guard = guard
        self._on_found = on_found
        self._stopping = threading.Event()
        self._gate = TorchCallGate()
        self._embedded: EmbeddedCollector | None = None
        self._thread = OwnThread(target=self._run, name="rankscope-connect", daemon=True)

    def start(self) -> None:
        """Start to look for the collector. Never raise: without it, reports stay in memory or on the disk."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._guard.record(PART, error)

    def stop(self) -> None:
        """End the search. If a collector is configured, wait at most `drain_s` until its address has been passed on."""
        self._stopping.set()
        if self._config.collector and self._thread.ident is not None:
            self._thread.wait_for_end(self._config.drain_s)

    def leave_torch(self) -> None:
        """Keep the thread out of torch from now on, since the interpreter exits."""
        self._gate.shut(self._config.drain_s)

    def wait_for_embedded(self) -> None:
        """Wait until the collector that this rank has started, if any, has ended; terminate it after `drain_s`."""
        if self._embedded is not None:
            self._embedded.wait(self._config.drain_s)

    def _run(self) -> None:
        try:
            configured = read_address(self._config, self._identity.run)
            address = configured or self._find_embedded()
            if address is not None:
                self._on_found(address, configured is not None)
        except RankscopeError as error:
            log_line(f"{error}; training continues without it")
        except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record(PART, error)

    def _find_embedded(self) -> CollectorAddress | None:
        # Imported only if no collector is configured, and on this thread, to keep the start short.
        from rankscope.agent.embedded import EmbeddedCollector, Rendezvous  # noqa: PLC0415

        identity, config = self._identity, self._config
        rendezvous = Rendezvous(identity, self._environment, self._stopping, self._gate)
        if identity.rank != 0:
            return rendezvous.find() if rendezvous.is_possible else None
        one_machine = self._environment.get("LOCAL_WORLD_SIZE", "1") == str(identity.world_size)
        embedded = self._embedded = EmbeddedCollector.start(
            one_machine=one_machine, metrics_port=config.embedded_metrics_port
        )
        page, metrics, change = embedded.page_url, embedded.metrics_url, embedded.describe_port_change()
        log_line(f"watching run {identity.run!r}: live page {page}, metrics {metrics}{change}")
        here = embedded.address
        if rendezvous.is_possible and identity.world_size > 1:
            port = here.endpoint.rpartition(":")[2]
            rendezvous.publish(CollectorAddress(f"tcp://{rendezvous.master_address}:{port}", here.keys))
        return here
