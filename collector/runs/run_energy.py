"""Sum the energy that the GPUs of a run have used, from the counters of their boards. Pure.

Counted from when the agent of a rank first read its GPU (docs/energy.md): what CPUs, switches and cooling use is not in
it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rankscope.measure.records import DeviceSample, Totals

JOULES_PER_KWH = 3.6e6
_PREFIXES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))


class RunEnergy(NamedTuple):
    """What the `gpus` of a run have used, in J, and the same by step, sample and token of all ranks together, if each
    rank reads batches of its own. `waiting_joules`: the share of it that is the run's share of time lost to slow ranks,
    at the mean power. None: not known; `absent` says why there is no sum, empty where there is one or no GPU.
    """

    joules: float | None = None
    gpus: int = 0
    per_step: float | None = None
    per_sample: float | None = None
    per_token: float | None = None
    waiting_joules: float | None = None
    absent: str = ""


def find_run_energy(
    ranks: Iterable[tuple[Totals, Sequence[DeviceSample]]], lost_to_slow_ratio: float | None = None
) -> RunEnergy:
    """Return the energy of the ranks, of each its totals and the last samples of its GPUs. A board that several ranks
    share counts once.
    """
    ranks = list(ranks)
    boards: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for _, devices in ranks:
        for device in devices:
            known = [one for one in (boards.get(device.uuid), device.energy_joules) if one is not None]
            boards[device.uuid] = max(known, default=None)
            if device.energy_joules is None:
                reasons[device.uuid] = device.absent.get("energy_joules", "not reported")
    known_joules = [one for one in boards.values() if one is not None]
    without = sum(not devices for _, devices in ranks)
    if not boards:
        return RunEnergy()
    if without or len(known_joules) < len(boards):
        why = f"{without} of {len(ranks)} ranks have no sample of a GPU"
        unknown = [uuid for uuid, value in boards.items() if value is None]
        return RunEnergy(gpus=len(boards), absent=why if without else reasons[unknown[0]].replace("_", " "))
    joules = sum(known_joules)
    totals = [one for one, _ in ranks]
    return RunEnergy(
        joules=joules,
        gpus=len(boards),
        per_step=_divide(joules, max(one.steps for one in totals)),
        per_sample=_divide(joules, _add([one.samples for one in totals])),
        per_token=_divide(joules, _add([one.tokens for one in totals])),
        waiting_joules=None if lost_to_slow_ratio is None else joules * min(1.0, lost_to_slow_ratio),
    )


def describe_run_energy(energy: RunEnergy) -> str:
    """Return the energy as text, or why it is not known; empty without a GPU.

    >>> describe_run_energy(RunEnergy(7.2e6, 8, per_step=1440.0, per_token=0.36, waiting_joules=9e5))
    '7.20 MJ (2.00 kWh) of 8 GPUs, 900 kJ of it in time lost to slow ranks; 1.44 kJ a step, 360 mJ a token'
    >>> describe_run_energy(RunEnergy(absent="not supported", gpus=2))
    'not known: not supported'
    """
    if energy.joules is None:
        return f"not known: {energy.absent}" if energy.absent else ""
    text = f"{format_joules(energy.joules)} ({energy.joules / JOULES_PER_KWH:,.2f} kWh) of {energy.gpus:,} GPUs"
    text = text.removesuffix("s") if energy.gpus == 1 else text
    if energy.waiting_joules:
        text += f", {format_joules(energy.waiting_joules)} of it in time lost to slow ranks"
    parts = ((energy.per_step, "step"), (energy.per_sample, "sample"), (energy.per_token, "token"))
    each = ", ".join(f"{format_joules(value)} a {unit}" for value, unit in parts if value is not None)
    return f"{text}; {each}" if each else text


def format_joules(joules: float) -> str:
    """Return an energy in three digits.

    >>> [format_joules(one) for one in (31_234_567.0, 900_000.0, 3.2, 0.0041, 0.0)]
    ['31.2 MJ', '900 kJ', '3.20 J', '4.10 mJ', '0 J']
    """
    if not joules:
        return "0 J"
    scale, unit = next((one for one in _PREFIXES if joules >= one[0]), _PREFIXES[-1])
    value = joules / scale
    decimals = 2 if value < 10 else 1 if value < 100 else 0  # noqa: PLR2004 - three digits
    return f"{value:,.{decimals}f} {unit}"


def _add(counts: Sequence[int | None]) -> int | None:
    known = [one for one in counts if one is not None]
    return sum(known) if len(known) == len(counts) else None


def _divide(joules: float, count: int | None) -> float | None:
    return joules / count if count else None
