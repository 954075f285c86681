"""Analyze profiler traces: `analyze(paths)` for notebooks and programs, and for the command `rankscope analyze`."""

from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import TraceReport

__all__ = ["TraceReport", "analyze"]
