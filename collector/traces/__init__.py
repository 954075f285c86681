"""Profiler traces from files: `analyze(paths)` for notebooks and programs; `rankscope analyze` is made of it."""

from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import TraceReport

__all__ = ["TraceReport", "analyze"]
