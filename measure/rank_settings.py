"""Define the agent's settings that a collector may change while training runs: how often and how long is measured."""

from typing import Final

from rankscope.measure.settings import Setting

COLLECTIVE_WINDOW: Final = Setting(
    "Length of a collective window, about; of many collectives in a step it is shorter.", "seconds", 0.1, 600
)
FULL_WINDOW_INTERVAL: Final = Setting(
    "Shortest time between two full windows, which `overhead_ratio_max` makes rarer.", "seconds", 1, 86_400
)
LINE_SAMPLES: Final = Setting(
    "Find source lines by samples of the training thread: for some seconds when the collector suspects this rank, or "
    "compares it with one, and in full windows of a GPU. Off: findings name no line."
)
