"""Ticks of a run as the service makes them: time passes, and a detection pass follows."""

from functools import cache

from rankscope.collector.detect.detectors import build_detectors, detect
from rankscope.collector.runs.events import RunEffect
from rankscope.collector.runs.run import RunState

_detectors_of = cache(build_detectors)


def tick_run(run: RunState, now_ns: int, wall_s: float = 0.0) -> list[RunEffect]:
    """Tick a run, run all detectors over it, and return what follows."""
    return run.tick(now_ns, wall_s) + detect_in(run, now_ns)


def detect_in(run: RunState, now_ns: int) -> list[RunEffect]:
    """Run all detectors over a run, and return what follows."""
    view = run.view(now_ns)
    return [] if view is None else run.apply(detect(view, _detectors_of(run.settings.config)))
