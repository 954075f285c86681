"""The past of the nodes, for rank 0: from the file of --history where that is given, else from the collector.

The collector keeps what a pre-flight says of the nodes in both cases.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from rankscope.agent.guard import log_line
from rankscope.agent.preflight.checks import NodeCheck
from rankscope.agent.preflight.collector_history import ANSWER_S, CollectorHistory, find_collector
from rankscope.agent.preflight.comparison import PEERS_MIN
from rankscope.agent.preflight.files import PreflightHistory, append_history, build_line, read_history
from rankscope.agent.preflight.judgement import Past
from rankscope.agent.preflight.results import PreflightReport, RankResults
from rankscope.measure.errors import UnavailableError


class NodesPast:
    """Where the past is read and kept. `path` is the file of --history, empty without; `collector` the option of that
    name, None without; `wait_s` bounds each wait for a collector. `forgets` is --forget-past: nothing is compared with,
    and the collector deletes what it has of the nodes so far. `mistakes` say what could not be used.
    """

    def __init__(self, path: str, collector: str | None, wait_s: float, *, forgets: bool = False) -> None:
        self._path = path
        self._option = collector
        self._forgets = forgets
        self._wait_s = min(ANSWER_S, wait_s)
        self._collector: CollectorHistory | None = None
        self._known: Past = {}
        self._file: PreflightHistory | None = None
        self.mistakes: list[str] = []

    def read(self, devices: Mapping[str, str]) -> None:
        """Read the past of the nodes; `devices` by node. A collector that does not answer is not asked again."""
        try:
            self._read_collector(devices)
            if self._path:
                self._file = read_history(self._path)
                if count := self._file.unreadable:
                    lines = "1 line is" if count == 1 else f"{count} lines are"
                    self.mistakes.append(f"{lines} left out of {self._path}: no pre-flight")
        except UnavailableError as error:
            self.mistakes.append(str(error))

    def _read_collector(self, devices: Mapping[str, str]) -> None:
        try:
            address = find_collector(os.environ, self._option)
            if address is None:
                return
            collector = CollectorHistory(address, self._wait_s)
            if not self._path and not self._forgets:
                self._known = collector.read_past(devices)
            self._collector = collector
        except UnavailableError as error:
            self.mistakes.append(str(error))

    def find(self, results: Sequence[RankResults]) -> Past:
        """Return the rates of earlier pre-flights by check and node; none before `read`."""
        return self._known if self._file is None else self._file.find_past(results)

    def describe(self, results: Sequence[RankResults]) -> str:
        """Return of how many nodes there are enough earlier pre-flights, and where; empty where none were read."""
        if self._file is not None:
            where = self._path
        elif self._collector is not None and not self._forgets:
            where = f"the store of the collector at {self._collector.endpoint}"
        else:
            return ""
        rates = [rates for nodes in self.find(results).values() for rates in nodes.items()]
        known = {node for node, earlier in rates if len(earlier) >= PEERS_MIN}
        nodes = {one.node for one in results}
        has = "has" if len(known & nodes) == 1 else "have"
        return f"{len(known & nodes)} of {len(nodes)} nodes {has} {PEERS_MIN} or more earlier pre-flights in {where}"

    def keep(self, report: PreflightReport, checks: Sequence[NodeCheck]) -> None:
        """Let the collector keep a pre-flight, and add it to the file. What fails is a line on stderr."""
        line = build_line(report, checks)
        keeping: list[Callable[[], None]] = []
        if self._path:
            keeping.append(lambda: append_history(self._path, line))
        if (collector := self._collector) is not None:
            keeping.append(lambda: collector.keep(report, line, forgets_past=self._forgets))
        for keep in keeping:
            try:
                keep()
            except UnavailableError as error:
                log_line(f"preflight: {error}")
