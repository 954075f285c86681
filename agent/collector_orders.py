"""Answers what the collector orders of one rank: captures, samples, settings. Each is imported with its first order, on
the agent's thread: hardly any rank ever has one.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankscope.agent.captures.worker_page import WorkerPage
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import CAPTURES, LINE_SAMPLES, Guard, describe
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.profiler.sessions import ProfilerSessions
from rankscope.measure.messages import (
    CaptureOrder,
    CapturePart,
    CapturePartWanted,
    CaptureState,
    SampleOrder,
    SamplesTaken,
    SettingsOrder,
    SettingsTaken,
)
from rankscope.measure.records import StepRecord

if TYPE_CHECKING:
    from rankscope.agent.captures.ordered_captures import OrderedCaptures
    from rankscope.agent.captures.ordered_samples import OrderedSamples
    from rankscope.agent.profiler.ordered_settings import OrderedSettings

Answer = CaptureState | CapturePart | SamplesTaken | SettingsTaken | None


class CollectorOrders:
    """The orders of one rank, on its agent thread. `find_step` returns the number of the step that it is in,
    `find_thread` the ident of the thread that trains. `page`: that of the workers of data loaders; None without
    samples. No method raises.
    """

    def __init__(
        self,
        sessions: ProfilerSessions,
        page: WorkerPage | None,
        guard: Guard,
        config: AgentConfig,
        *,
        find_step: Callable[[], int],
        find_thread: Callable[[], int | None],
    ) -> None:
        self._sessions = sessions
        self._config = config
        self._page = page
        self._guard = guard
        self._find_step = find_step
        self._find_thread = find_thread
        self._captures: OrderedCaptures | None = None
        self._samples: OrderedSamples | None = None
        self._settings: OrderedSettings | None = None

    def handle(self, order: CaptureOrder | CapturePartWanted | SampleOrder | SettingsOrder) -> Answer:
        """Return the answer to a message of the collector."""
        if isinstance(order, SettingsOrder):
            return self._handle_settings(order)
        if isinstance(order, SampleOrder):
            return self._handle_samples(order)
        try:
            if self._captures is None and not self._guard.is_off(CAPTURES):
                self._captures = self._make_captures()
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the reports
            self._guard.record(CAPTURES, error)
            reason = f"captures could not be begun on this rank: {describe(error)}"
            return CaptureState(id=order.id, state="refused", reason=reason)
        return None if self._captures is None else self._captures.handle(order)

    def _handle_settings(self, order: SettingsOrder) -> SettingsTaken:
        try:
            if self._settings is None:
                with LATE_IMPORTS:
                    from rankscope.agent.profiler.ordered_settings import OrderedSettings  # noqa: PLC0415 - see above
                self._settings = OrderedSettings(self._config, self._sessions.windows)
            return self._settings.handle(order)
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record("settings", error)
            return SettingsTaken(id=order.id, refused=dict.fromkeys(order.values, describe(error)))

    def _handle_samples(self, order: SampleOrder) -> SamplesTaken | None:
        try:
            if self._samples is None and not self._guard.is_off(LINE_SAMPLES):
                self._samples = self._make_samples()
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record(LINE_SAMPLES, error)
            reason = f"samples could not be begun on this rank: {describe(error)}"
            return SamplesTaken(id=order.id, state="refused", reason=reason)
        return None if self._samples is None else self._samples.handle(order)

    def collect_samples(self, steps: Sequence[StepRecord], *, last: bool) -> SamplesTaken | None:
        """Add up the samples of steps that have ended; return the answer to an order that is over, None while none
        is. Settings whose time is over go back. To be called once a report.
        """
        if self._settings is not None:
            self._settings.tick()
        return None if self._samples is None else self._samples.collect(steps, last=last)

    def collect_captures(self) -> list[CaptureState]:
        """Return the states of captures that have become final since the last call. May raise OSError."""
        return [] if self._captures is None else self._captures.collect()

    @property
    def spent_ns(self) -> int:
        """CPU time of sampling so far."""
        return 0 if self._samples is None else self._samples.spent_ns

    @property
    def has_files(self) -> bool:
        """Whether there is a captured file that the collector has not fetched yet."""
        return self._captures is not None and self._captures.has_files

    def close(self) -> None:
        """Close all files. Idempotent."""
        if self._captures is not None:
            self._captures.close()

    def _make_captures(self) -> "OrderedCaptures | None":
        traces = self._sessions.open_traces()
        if traces is None:
            return None
        with LATE_IMPORTS:
            from rankscope.agent.captures.ordered_captures import OrderedCaptures  # noqa: PLC0415 - see above

        return OrderedCaptures(traces, self._guard, is_allowed=self._config.capture_orders, find_step=self._find_step)

    def _make_samples(self) -> "OrderedSamples":
        sampling = self._sessions.windows.sampling
        with LATE_IMPORTS:
            from rankscope.agent.captures.ordered_samples import OrderedSamples  # noqa: PLC0415 - see above
            from rankscope.agent.captures.worker_samples import WorkerSamples  # noqa: PLC0415 - see above

        return OrderedSamples(
            sampling.find_sampler(),
            sampling.files,
            self._guard,
            find_thread=self._find_thread,
            workers=None if self._page is None else WorkerSamples(self._page),
            obstacle=sampling.obstacle,
        )
