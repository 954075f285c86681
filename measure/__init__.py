"""Define measurements: their records, units, formulas, clocks and binary format.

The agent and the collector import this package; it imports neither. It uses no socket, no thread and no torch, so that
everything in it can be tested by calling it.
"""

__version__ = "0.1.0"
