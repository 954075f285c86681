"""Analyze profiler traces: `analyze(paths)` for notebooks and programs, and for the command `rankscope analyze`."""

from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.event_rows import find_call_stack, find_inside
from rankscope.collector.traces.report import TraceReport

__all__ = ["TraceReport", "analyze", "find_call_stack", "find_inside"]
