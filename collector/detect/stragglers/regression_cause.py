"""Find why some ranks, or all, have become slower than before, by comparing them with their own past.

Each test, as in `root_cause.py`, requires that its part explains at least half of the added time. Clocks and throttle
reasons have no history: there the ranks are compared with the other ranks, if any.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.machine_growth import spread
from rankscope.collector.detect.stragglers.host_times import NO_CLOCK, time_per_step
from rankscope.collector.detect.stragglers.recompilation import RECOMPILATION, describe_compilation, measure_compilation
from rankscope.collector.detect.stragglers.root_cause import (
    CLOCK_RATIO,
    CPU_PRESSURE,
    EXPLAINS,
    HOST_CPU,
    MORE_WORK_RATIO,
    UNSEEN_WAIT,
    Cause,
    name_throttle,
)
from rankscope.collector.detect.view import RunView, TimeCount
from rankscope.collector.steps.step_series import Cells, Floats
from rankscope.measure.records import WindowBreakdown
from rankscope.measure.units import format_duration

Verdict = tuple[str, str] | None

UNATTRIBUTED: Final = "unattributed"
COMPUTE_ADDED: Final = "compute_added_ns"
"""Evidence key: how much longer the devices compute in a step."""
IDLE: Final = "idle_added_ns"
"""Evidence key: how much longer the devices are idle in a step."""
CORE_WAIT_ADDED: Final = "core_wait_added_ns"
"""Evidence key: how much longer the training threads wait for a CPU core in a step."""
THEY_WAIT: Final = "waiting for something not measured"
THAN_BEFORE: Final = "than before"
DECIDED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "data_loading": ("data_added_ns",),
    "slow_link": ("transfer_added_ns",),
    RECOMPILATION: ("recompilation_added_ns",),
    "garbage_collection": ("gc_added_ns",),
    "gpu_compute": (COMPUTE_ADDED,),
    "more_work": (COMPUTE_ADDED,),
    CPU_PRESSURE: (CORE_WAIT_ADDED,),
    HOST_CPU: (IDLE, "cpu_added_ns"),
    UNSEEN_WAIT: (IDLE, "off_cpu_added_ns"),
}
"""Evidence keys that a cause is found by: the first of them that the evidence has."""
RANKS_READ_MAX: Final = 64
"""Ranks, evenly spread, whose processes are read."""


class Compared(NamedTuple):
    """Steps that are compared: those from `since_step` on with those before it, from `from_step` on. The former have
    `more_work` times as much work: so each part of the latter counts as so many times as long.
    """

    since_step: int
    from_step: int = 0
    more_work: float = 1.0

    @property
    def than_before(self) -> str:
        """Return what a part of a step is longer than, as text.

        >>> Compared(60).than_before, Compared(60, more_work=1.5).than_before
        ('than before', 'than the added tokens explain')
        """
        return THAN_BEFORE if self.more_work == 1.0 else "than the added tokens explain"


def find_cause_of_change(view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float) -> Cause:
    """Return why these ranks take `added_ns` a step longer than before; `unattributed` when no test passes."""
    evidence: dict[str, float] = {}
    for test in (_data, _recompilation, _cores, _transfer, _garbage, _throttle, _windows, _threads):
        found = test(view, ranks, compared, max(1.0, added_ns), evidence)
        if found is not None:
            name, because = found
            return Cause(name, because.replace(THAN_BEFORE, compared.than_before), evidence)
    return Cause(UNATTRIBUTED, "no known cause", evidence)


def find_undecided(finding: Finding, evidence: Mapping[str, float]) -> Mapping[str, float]:
    """Return the evidence that the cause of a finding was found by, where `evidence` has no such, and so does not
    contradict the cause; empty otherwise.
    """
    found_by = next((key for key in DECIDED_BY.get(finding.cause, ()) if key in finding.evidence), None)
    return {} if found_by is None or found_by in evidence else {found_by: finding.evidence[found_by]}


def _data(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    data_ns = view.series.phases_ns.get("data")
    if data_ns is None:
        return None
    longer_ns = _median_growth(data_ns, view, ranks, compared)
    if longer_ns is None:
        return None
    evidence["data_added_ns"] = longer_ns
    if longer_ns < EXPLAINS * added_ns:
        return None
    return "data_loading", f"{format_duration(longer_ns)} more per step waiting for their data loaders than before"


def _medians(values: Floats) -> Floats:
    """Return the median of each row over the ranks of which it is known; NaN where it is known of none."""
    medians = np.full(len(values), np.nan)
    known = ~np.isnan(values).all(axis=1)
    medians[known] = np.nanmedian(values[known], axis=1)
    return medians


def _transfer(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    wanted = set(ranks)
    grown = [
        growth
        for group, transfer_ns in view.transfers_ns.items()
        if not wanted.isdisjoint(view.groups.get(group, ()))
        and (growth := _growth(np.where(transfer_ns > 0, transfer_ns, np.nan), view, compared)) is not None
    ]
    if not grown:
        return None
    evidence["transfer_added_ns"] = longest = max(grown)
    if longest < EXPLAINS * added_ns:
        return None
    return "slow_link", f"{format_duration(longest)} more per step moving their data than before"


def _growth(values_ns: Floats, view: RunView, compared: Compared) -> float | None:
    """Return by how much the median of the known values has grown beyond more work; None where a side has none."""
    known = ~np.isnan(values_ns)
    steps = view.series.steps
    after = values_ns[known & (steps >= compared.since_step)]
    before = values_ns[known & (steps < compared.since_step) & (steps >= compared.from_step)]
    if not len(after) or not len(before):
        return None
    return float(np.median(after) - compared.more_work * np.median(before))


def _garbage(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    longer_ns = _growth_per_step(view.samples.gc_pauses, ranks, compared, NO_CLOCK)
    if longer_ns is None:
        return None
    evidence["gc_added_ns"] = longer_ns
    if longer_ns < EXPLAINS * added_ns:
        return None
    return "garbage_collection", f"{format_duration(longer_ns)} more per step in Python's garbage collector"


def _recompilation(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    steps = [step for step in view.series.steps.tolist() if step >= compared.from_step]
    after, before = (
        {step for step in steps if (step >= compared.since_step) is is_after} for is_after in (True, False)
    )
    read, grown = spread(ranks, RANKS_READ_MAX), []
    for rank in read:
        times_ns = [measure_compilation(view.samples.compiled, rank, some) for some in (after, before)]
        if times_ns[0] is not None:
            grown.append(times_ns[0] - compared.more_work * (times_ns[1] or 0.0))
    longer_ns = float(np.median(grown)) if grown else 0.0
    if longer_ns <= 0.0:
        return None
    evidence["recompilation_added_ns"] = longer_ns
    if longer_ns < EXPLAINS * added_ns:
        return None
    return RECOMPILATION, describe_compilation(longer_ns, " more per step", view.samples.compiled, read, after)


def _growth_per_step(
    counts: Mapping[int, Sequence[TimeCount]],
    ranks: Sequence[int],
    compared: Compared,
    clock: Mapping[int, Sequence[TimeCount]],
) -> float | None:
    """Return by how much a time in each step has grown since that step on these ranks, of many on RANKS_READ_MAX: the
    median, in ns; None where it is not known of any on both sides. `clock` is the time at the samples.
    """
    grown = []
    for rank in spread(ranks, RANKS_READ_MAX):
        samples, times = tuple(counts.get(rank, ())), tuple(clock.get(rank, ()))
        after = time_per_step(samples, compared.since_step, times)
        earlier, times = (_up_to(compared.since_step, one) for one in (samples, times))
        before = time_per_step(earlier, compared.from_step, times)
        if after is not None and before is not None:
            grown.append(after - compared.more_work * before)
    return float(np.median(grown)) if grown else None


def _up_to(step: int, counts: Sequence[TimeCount]) -> tuple[TimeCount, ...]:
    return tuple(count for count in counts if count.steps < step)


def _core_waits_growth(view: RunView, ranks: Sequence[int], compared: Compared) -> float | None:
    """Return by how much longer training threads wait for a CPU core in a step; None where that is not known, or longer
    than a step: then they have not waited in steps.
    """
    grown_ns = _growth_per_step(view.samples.core_waits, ranks, compared, view.samples.host_clock)
    longest_ns = view.longest_ns[view.series.steps >= compared.since_step]
    step_ns = float(np.nanmedian(longest_ns)) if not np.isnan(longest_ns).all() else np.inf
    return None if grown_ns is None or grown_ns > step_ns else grown_ns


def _throttle(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    """Find a throttle reason or a slow clock that most of their GPUs have, and most of the others have not."""
    del compared, added_ns
    mine = [device for rank in ranks for device in view.samples.devices.get(rank, ())]
    chosen = set(ranks)
    others = [device for rank, devices in view.samples.devices.items() if rank not in chosen for device in devices]
    if not mine or not others:
        return None
    clocks = [device.sm_clock_hertz for device in mine if device.sm_clock_hertz]
    their_clocks = [device.sm_clock_hertz for device in others if device.sm_clock_hertz]
    reasons = Counter(reason for device in mine for reason in device.throttle_reasons or ())
    theirs = Counter(reason for device in others for reason in device.throttle_reasons or ())
    common = [reason for reason, count in reasons.items() if 2 * count > len(mine)]
    own = [reason for reason in sorted(common) if 2 * theirs[reason] < len(others)]
    if clocks and their_clocks:
        evidence["sm_clock_ratio"] = ratio = float(np.median(clocks) / np.median(their_clocks))
        if ratio >= CLOCK_RATIO:
            return None
        text = f"their GPUs at {100 * ratio:.0f} % of the others' clock"
        return name_throttle(own) or ("gpu_slow_clock", text)
    return name_throttle(own)


def _windows(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    """Find more work or slower kernels, and put the idle time of devices into the evidence."""

    def grown(read: Callable[[WindowBreakdown], float | None]) -> tuple[float, float] | None:
        values: dict[bool, list[float]] = {True: [], False: []}
        for rank in ranks:
            for window in view.samples.breakdowns.get(rank, ()):
                value = read(window)
                if value is not None and window.step_count > 0 and window.first_step >= compared.from_step:
                    values[window.first_step >= compared.since_step].append(value / window.step_count)
        return (float(np.median(values[False])), float(np.median(values[True]))) if all(values.values()) else None

    compute, idle = grown(lambda window: window.compute_ns), grown(lambda window: window.idle_ns)
    if compute is None or idle is None:
        return None
    has_device = any(view.samples.devices.get(rank) for rank in ranks)
    operators = grown(lambda window: window.operator_count)
    evidence[COMPUTE_ADDED] = compute[1] - compared.more_work * compute[0]
    if has_device:
        evidence[IDLE] = idle[1] - compared.more_work * idle[0]
    if evidence[COMPUTE_ADDED] >= EXPLAINS * added_ns:
        if operators is not None and operators[1] >= MORE_WORK_RATIO * operators[0]:
            return "more_work", f"{operators[1]:.0f} operators per step, {operators[0]:.0f} before"
        if has_device:
            longer = format_duration(evidence[COMPUTE_ADDED])
            return "gpu_compute", f"{longer} more per step on their GPUs for the same work"
    return None


def _cores(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    """Find training threads without devices that wait longer for a CPU core. Threads that move data without a device
    wait as well then: so this comes before slow links.
    """
    if any(view.samples.devices.get(rank) for rank in ranks):
        return None
    for_cores_ns = _core_waits_growth(view, ranks, compared)
    if for_cores_ns is None:
        return None
    evidence[CORE_WAIT_ADDED] = for_cores_ns
    if for_cores_ns < EXPLAINS * added_ns:
        return None
    return CPU_PRESSURE, _longer("training threads waiting", for_cores_ns, " for a CPU core")


def _threads(
    view: RunView, ranks: Sequence[int], compared: Compared, added_ns: float, evidence: dict[str, float]
) -> Verdict:
    """Find what the processes do longer: compute, wait for a CPU core, or wait for what is not seen. Of ranks with GPUs
    that says something only where these are idle as much longer.
    """
    least_ns = EXPLAINS * added_ns
    has_device = any(view.samples.devices.get(rank) for rank in ranks)
    if has_device and evidence.get(IDLE, 0.0) < least_ns:
        return None
    idle = f"their GPUs idle {format_duration(evidence[IDLE])} more per step" if has_device else ""
    of_threads_ns = _median_growth(view.series.cpu_ns, view, ranks, compared)
    of_processes_ns = _growth_per_step(view.samples.process_cpu, ranks, compared, view.samples.host_clock)
    for_cores_ns = _core_waits_growth(view, ranks, compared)
    values = (
        ("cpu_added_ns", of_threads_ns),
        ("process_cpu_added_ns", of_processes_ns),
        (CORE_WAIT_ADDED, for_cores_ns),
    )
    evidence.update({name: value for name, value in values if value is not None})
    for value, does in ((of_threads_ns, "training threads computing"), (of_processes_ns, "processes computing")):
        if value is not None and value >= least_ns:
            return HOST_CPU, f"{idle}, waiting for their hosts" if idle else _longer(does, value, "")
    if for_cores_ns is not None and for_cores_ns >= least_ns:  # without devices `_cores` has found it
        return CPU_PRESSURE, f"{idle} and {_longer('training threads waiting', for_cores_ns, ' for a CPU core')}"
    return (_idle_devices if has_device else _blocked)(view, ranks, compared, least_ns, evidence)


def _longer(does: str, longer_ns: float, what_for: str) -> str:
    return f"their {does} {format_duration(longer_ns)} more per step{what_for} than before"


def _idle_devices(
    view: RunView, ranks: Sequence[int], compared: Compared, least_ns: float, evidence: dict[str, float]
) -> Verdict:
    """Return why devices are idle longer whose processes do not compute longer: a training thread that is hardly off
    the CPU is at work, or spins.
    """
    columns, series = view.series.columns_of(ranks), view.series
    idle = f"their GPUs idle {format_duration(evidence[IDLE])} more per step"
    off_ns = _medians(series.step_ns[:, columns] - series.cpu_ns[:, columns])[series.steps >= compared.since_step]
    if np.isnan(off_ns).all():
        return UNATTRIBUTED, f"{idle}, CPU time of their training threads not known"
    evidence["off_cpu_ns"] = off_cpu_ns = float(np.nanmedian(off_ns))
    if off_cpu_ns < least_ns:
        return HOST_CPU, f"{idle}, waiting for their hosts"
    return UNSEEN_WAIT, f"{idle}, their training threads off the CPU, {THEY_WAIT}"


def _blocked(
    view: RunView, ranks: Sequence[int], compared: Compared, least_ns: float, evidence: dict[str, float]
) -> Verdict:
    """Find training threads without devices that are off the CPU longer than before, neither in data nor in known waits
    for other ranks.
    """
    columns, series = view.series.columns_of(ranks), view.series
    if not series.own_is_measured:
        return None
    unseen_ns = series.own_ns[:, columns] - series.cpu_ns[:, columns]
    if "data" in series.phases_ns:
        unseen_ns -= series.phases_ns["data"][:, columns]
    longer_ns = _growth(_medians(unseen_ns), view, compared)
    if longer_ns is None:
        return None
    evidence["off_cpu_added_ns"] = longer_ns
    if longer_ns < least_ns:
        return None
    longer = format_duration(longer_ns)
    return UNSEEN_WAIT, f"their training threads off the CPU {longer} more per step than before, {THEY_WAIT}"


def _median_growth(values_ns: Cells, view: RunView, ranks: Sequence[int], compared: Compared) -> float | None:
    """Return by how much the median over these ranks has grown since that step, in ns; None where it is not known."""
    return _growth(_medians(values_ns[:, view.series.columns_of(ranks)]), view, compared)
