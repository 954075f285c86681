"""Takes settings that the collector changes while training runs: how often and how long windows are, and samples.

The budget stays above them (`governor.py`): a window that is ordered more often begins only where it pays for it. What
an order does not name is the rank's own again, as is everything when its time is over, also without a collector.

Everything runs on the agent thread; imported with the first order.
"""

import os
import time
from collections.abc import Callable
from typing import Final

from rankscope.agent.captures.sampling import SWITCHED_OFF
from rankscope.agent.config import AUTO, YES, AgentConfig
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler.windows import ProfilerWindows
from rankscope.measure.errors import SettingError
from rankscope.measure.messages import SettingsOrder, SettingsTaken
from rankscope.measure.settings import Value, read
from rankscope.measure.units import s_to_ns

TIMES: Final = "collective_window_s", "full_window_interval_s"
NAMES: Final = (*TIMES, "line_samples")
SAID: Final = (
    "the collector has changed how this run is measured (rankscope set); `rankscope set RUN` says what and by whom"
)


class OrderedSettings:
    """The settings of one rank that the collector has changed."""

    def __init__(
        self, config: AgentConfig, windows: ProfilerWindows, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._config = config
        self._windows = windows
        self._monotonic_ns = monotonic_ns
        self._own: dict[str, Value] = {name: getattr(config, name) for name in NAMES}
        self._in_force = dict(self._own)
        self._until_ns: dict[str, int] = {}

    def handle(self, order: SettingsOrder) -> SettingsTaken:
        """Take an order, all of it that this rank allows and has a use for, and say what it refuses."""
        values, refused, now_ns = dict(self._own), {}, self._monotonic_ns()
        for name, text in order.values.items():
            try:
                values[name] = self._check(name, text)
            except SettingError as error:
                refused[name] = str(error)
        self._until_ns = {name: now_ns + ns for name, ns in order.lasts_ns.items() if name in values}
        if values != self._own:
            log_once_per_node(SAID, os.environ)
        self._apply(values)
        return SettingsTaken(id=order.id, refused=refused)

    def tick(self) -> None:
        """Go back to the rank's own where the time of an order is over. To be called once a report."""
        now_ns = self._monotonic_ns()
        over = [name for name, until_ns in self._until_ns.items() if now_ns >= until_ns]
        if over:
            self._until_ns = {name: one for name, one in self._until_ns.items() if name not in over}
            self._apply({**self._in_force, **{name: self._own[name] for name in over}})

    def _check(self, name: str, text: str) -> Value:
        """Return the value in its type. Raises SettingError with why this rank does not take it."""
        orders, captures = self._config.setting_orders, self._config.capture_orders
        if orders != YES and not (orders == AUTO and captures):
            key = "capture_orders is off" if orders == AUTO else f"setting_orders is {orders}"
            raise SettingError(f"{key} on this rank")
        if name not in NAMES:  # of a later release
            raise SettingError("this agent cannot change it while it runs")
        values = read(AgentConfig, overrides={name: text}, overrides_from="ordered by the collector")
        config, value = self._config, getattr(values, name)
        if name == "line_samples":
            if value and not config.line_samples:
                raise SettingError(SWITCHED_OFF)
        elif self._windows.scheduler is None or not (
            config.full_windows if name == "full_window_interval_s" else config.collective_windows
        ):
            raise SettingError("this rank has no such profiler windows")
        found: Value = value
        return found

    def _apply(self, values: dict[str, Value]) -> None:
        if any(values[name] != self._in_force[name] for name in TIMES):
            self._windows.plan.set_times(*(s_to_ns(float(values[name])) for name in TIMES))
        if values["line_samples"] != self._in_force["line_samples"]:
            sampler = self._windows.sampling.find_sampler()
            if sampler is not None:
                sampler.is_paused = not values["line_samples"]
        self._in_force = values
