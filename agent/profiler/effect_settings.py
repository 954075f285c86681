"""What compares steps by the settings, and what is said to the user of windows that have ended by that."""

from typing import Final

from rankscope.agent.config import ALWAYS, GOVERNED, OFF, ON_DEMAND, AgentConfig
from rankscope.agent.profiler.window_effect import SLOWDOWN_MIN, EffectState, WindowEffect, describe_ratio

_FIRST_STATES: Final = {
    GOVERNED: EffectState.REFERENCE, ON_DEMAND: EffectState.ON_DEMAND, OFF: EffectState.ENDED
}  # fmt: skip


def make_effect(config: AgentConfig) -> WindowEffect | None:
    """Return what governs the windows of a device by the setting `device_windows`; None: nothing does."""
    if config.device_windows == ALWAYS:
        return None
    state = _FIRST_STATES[config.device_windows]
    slowdown_min = max(SLOWDOWN_MIN, config.overhead_ratio_max)
    return WindowEffect(warmup_steps=config.warmup_steps, slowdown_min=slowdown_min, state=state)


def make_comparison(config: AgentConfig) -> WindowEffect:
    """Return what compares steps with those before something that is no window of the device."""
    return WindowEffect(warmup_steps=config.warmup_steps, slowdown_min=max(SLOWDOWN_MIN, config.overhead_ratio_max))


def describe_effect(effect: WindowEffect) -> str:
    """Return what was seen of windows that have ended, in a line for the log, and what can be done.

    >>> effect = WindowEffect(warmup_steps=4)
    >>> effect.attached_ratio, effect.detached_ratio = 0.336, -0.002
    >>> describe_effect(effect).partition(": ")[2].partition(". Compute")[0]  # doctest: +NORMALIZE_WHITESPACE
    'after the first one steps were 34 % longer than before it. Since CUPTI was detached they have been as long as
    before it'
    """
    slower = f"after the first one steps were {describe_ratio(effect.attached_ratio or 0.0)}"
    if effect.detached_ratio is None:
        since = (
            "Whether the profiler library that it has loaded (CUPTI on NVIDIA) is the cause could not be tested, and "
            "it stays loaded until the process ends"
        )
    else:
        since = f"Since CUPTI was detached they have been {describe_ratio(effect.detached_ratio)}"
    return (
        f"this rank takes no more full profiler windows: {slower}. {since}. Compute, communication and idle ratios are "
        "absent from now on. RANKSCOPE_DEVICE_WINDOWS=always keeps the windows, on_demand has ratios of captured steps "
        "only, off never begins a window (docs/cost.md)"
    )
