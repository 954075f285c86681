"""A relay as an operator starts it, in a process of its own."""

import contextlib
from collections.abc import Iterator, Mapping

from tests.integration.serving import AnnouncingProcess, wait_for


class RunningRelay(AnnouncingProcess):
    """A running `rankscope relay`. Made by `relaying`."""

    def __init__(
        self, arguments: tuple[str, ...], batch_interval_s: float, environment: Mapping[str, str] | None = None
    ) -> None:
        interval = {"RANKSCOPE_RELAY_CONSTANT_BATCH_INTERVAL_S": str(batch_interval_s)}
        super().__init__("relay", ("relay", "--announce", *arguments), {**interval, **(environment or {})})
        self.endpoint: str = self.announced["endpoint"]

    def wait_for_words(self, words: str) -> None:
        """Wait until its log has them."""
        wait_for(lambda: True if words in self.read_stderr() else None, self.read_stderr)


@contextlib.contextmanager
def relaying(
    collector: str,
    *arguments: str,
    listen: str = "tcp://127.0.0.1:0",
    batch_interval_s: float = 0.1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningRelay]:
    """Start a relay, at a free port and with quick batches unless told otherwise; it does not outlive the block."""
    relay = RunningRelay(("--collector", collector, "--listen", listen, *arguments), batch_interval_s, environment)
    try:
        yield relay
    finally:
        relay.close()
