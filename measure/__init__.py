"""Define measurements: their records, units, formulas, clocks and binary format.

Both programs import this package and it imports neither of them. It holds no socket, no thread and no torch, so that
everything in it can be tested by calling it.
"""

__version__ = "0.1.0"
