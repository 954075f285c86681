"""Define the thresholds that the rules over a live run and over its traces share.

The rules over a live run (`rules.py`) and over its traces (`traces/advice_rules_*.py`) apply them to different
evidence.
"""

from typing import Final

CRITICAL_RATIO: Final = 0.3
"""A share of the time that makes the step 1.4 times as long as it could be."""
IDLE_RATIO_MIN: Final = 0.3
"""Idle time of the device caused by its host: 9 % in data-bound traces, 45 % and more in host-bound ones."""
DATA_RATIO_MIN: Final = 0.1
"""Data phase over the step: 34 % in data-bound traces, up to 2 % with sound loaders, 5 to 10 % in host-bound ones."""
QUEUE_RATIO_MIN: Final = 0.1
"""Wait of the training thread for a CPU core over the step: below a thousandth where every rank has a core."""
PAUSE_RATIO_MIN: Final = 0.05
"""Time that steps are longer than usual, and garbage collectors pause: 16 ranks that pause 1 ms in 20 s are 0.08 %."""
EXPOSED_RATIO_MIN: Final = 0.15
"""Exposed communication over the window, without waits where they are known: healthy runs stay below 7 %. That of a
single rank's trace includes waits for others."""
OVERLAP_RATIO_MAX: Final = 0.2
"""Healthy DDP overlaps 43 to 90 % of its communication; serialized traces 2 to 16 %."""
HOST_COPY_RATIO_MIN: Final = 0.05
"""Copies from the host during which no kernel runs, over the window: 1 % in a ResNet-50 that copies its images from
pageable memory, on a V100; less in all other traces."""
HIDEABLE_RATIO_MIN: Final = 0.1
"""Largest possible saving over the time the device worked: the shorter of communication alone and compute alone."""


def percent(ratio: float) -> str:
    """Return a share as text.

    >>> percent(0.156), percent(0.0042)
    ('16 %', '0.4 %')
    """
    return f"{100 * ratio:.0f} %" if ratio >= 0.01 else f"{100 * ratio:.1f} %"  # noqa: PLR2004 - below one in a hundred
