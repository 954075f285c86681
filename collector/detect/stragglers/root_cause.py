"""Find the cause of a straggler: the part of the step that holds its excess over its peers (docs/definitions.md section
5).

Each rule names its cause if its part explains at least half of the excess. Data, compilation, garbage collection and
the device come first because they are the most specific, then memory, which makes a host wait for its GPU, then calls
in which it waits by itself, then the host: it computes longer, waits for a CPU core, for other threads of its process,
or for what is not seen. `unattributed` when no rule holds.

The largest part of its step says nothing: that is the forward or the backward on every rank. Example: a rank needs 80
ms more than its peers, and waits 72 ms for its loader where they wait 2: the data hold 70 of the 80, and are the cause,
though its forward takes 200 ms.
"""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.blocking_calls import describe_kind, find_excess
from rankscope.collector.detect.finding_words import OF_IT
from rankscope.collector.detect.machine_growth import Machines
from rankscope.collector.detect.stragglers.cpu_pressure import find_cpu_pressure
from rankscope.collector.detect.stragglers.host_times import (
    CPU_EXCESS,
    PEERS_CPU,
    compare_times,
    find_core_wait,
    find_longer_work,
    find_other_threads,
    may_be_in_steps,
    share_of_slow_steps,
)
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.stragglers.recompilation import RECOMPILATION, compare_compilation, describe_compilation
from rankscope.collector.detect.stragglers.storage import STORAGE, find_block_io, find_slow_saves
from rankscope.collector.detect.view import AllocatorCounts, Samples
from rankscope.collector.steps.step_series import Cells, Floats, Ints, StepSeries
from rankscope.measure.records import AllocatorSample, DeviceSample, WindowBreakdown, WindowSynchronizations
from rankscope.measure.units import format_bytes, format_duration

# Memory pressure: the counters of torch's allocator and of the host, compared with those of the peers.
#
# A healthy run allocates all its blocks in the first steps and none afterwards. Under memory pressure blocks are freed
# and allocated again in step after step, and each time the host waits for the GPU.

RETRIES_PER_STEP: Final = 0.1
"""Retries above the peers'. A retry empties the cache and stops the GPU until blocks are allocated again; a run with
enough memory makes none."""
DEVICE_CALLS_PER_STEP: Final = 1.0
"""Allocations and frees at the driver, above the peers': a steady run makes none, a single large batch a few once."""
MAJOR_FAULT_NS: Final = 100_000
"""The least time that a major page fault takes: 0.1 ms from a fast disk."""


def find_memory_pressure(
    slow: SlowRank, explained_ns_min: float, evidence: dict[str, float], samples: Samples
) -> str | None:
    """Describe the memory pressure of the rank and add its numbers to `evidence`; None when there is none, or the rank
    or its peers have no counters. Page faults must explain `explained_ns_min` of a step.
    """
    retries = _compare(slow, evidence, "retries_per_step", lambda rank: _per_step(rank, slow, samples, _retries))
    calls = _compare(slow, evidence, "device_calls_per_step", lambda rank: _per_step(rank, slow, samples, _calls))
    faults = _compare(slow, evidence, "major_faults_per_step", lambda rank: _faults_per_step(rank, samples))
    before = _per_step_before(slow, samples, _retries)
    if retries is not None and retries[0] - max(retries[1], before) >= RETRIES_PER_STEP:
        return f"its GPU's memory full {retries[0]:.1f} times per step, its peers' {retries[1]:.1f} times"
    before = _per_step_before(slow, samples, _calls)
    if calls is not None and calls[0] - max(calls[1], before) >= DEVICE_CALLS_PER_STEP:
        return f"{calls[0]:.1f} calls of its allocator to the driver per step, {calls[1]:.1f} on its peers"
    if faults is not None and (faults[0] - faults[1]) * MAJOR_FAULT_NS >= explained_ns_min:
        return f"{faults[0]:.0f} pages of memory read from disk per step, {faults[1]:.0f} on its peers"
    return None


def _compare(
    slow: SlowRank, evidence: dict[str, float], name: str, measure: Callable[[int], float | None]
) -> tuple[float, float] | None:
    """Return the rank's value and the median of its peers'; None when it or all of them are not known."""
    mine = measure(slow.rank)
    peers = [value for value in map(measure, slow.peers.ranks) if value is not None]
    if mine is None or not peers:
        return None
    evidence[name] = mine
    return mine, float(np.median(peers))


def _retries(sample: AllocatorSample) -> int | None:
    return sample.retries


def _calls(sample: AllocatorSample) -> int | None:
    if sample.device_allocs is None or sample.device_frees is None:
        return None
    return sample.device_allocs + sample.device_frees


def _per_step(
    rank: int, slow: SlowRank, samples: Samples, count: Callable[[AllocatorSample], int | None]
) -> float | None:
    """Return the count per step since the slow rank's present level; None without two counts in that time."""
    known: Sequence[AllocatorCounts] = [
        counts for counts in samples.allocators.get(rank, ()) if counts.steps >= slow.level_from_step
    ]
    if len(known) < 2 or known[-1].steps == known[0].steps:  # noqa: PLR2004 - a difference takes two
        return None
    first, last = count(known[0].sample), count(known[-1].sample)
    return None if first is None or last is None else (last - first) / (known[-1].steps - known[0].steps)


def _per_step_before(slow: SlowRank, samples: Samples, count: Callable[[AllocatorSample], int | None]) -> float:
    """Return the slow rank's count per step before it became slow; 0 where that is not known. A process begins without
    retries, so of these one sample is enough; but with calls to the driver, which its first steps make.
    """
    until = -1 if slow.before_step is None else slow.before_step
    known = [counts for counts in samples.allocators.get(slow.rank, ()) if counts.steps <= until]
    if len(known) == 1 and known[0].steps > 0 and count is _retries:
        return (count(known[0].sample) or 0) / known[0].steps
    known = known[2:] if len(known) > 3 else known  # noqa: PLR2004 - without the start, where more is known
    if len(known) < 2 or known[-1].steps == known[0].steps:  # noqa: PLR2004 - a difference takes two
        return 0.0
    first, last = count(known[0].sample), count(known[-1].sample)
    return 0.0 if first is None or last is None else (last - first) / (known[-1].steps - known[0].steps)


def _faults_per_step(rank: int, samples: Samples) -> float | None:
    """Return the major page faults per step since the start, by the steps at the last sample of the host."""
    host, pauses = samples.hosts.get(rank), samples.gc_pauses.get(rank, ())
    if host is None or host.major_faults is None or not pauses or pauses[-1].steps == 0:
        return None
    return host.major_faults / pauses[-1].steps


SHOWN_BEFORE = " (already before it was slow: "
"""What follows a cause where there are older signs."""
EXPLAINS = 0.5
"""Share of the excess that a part must hold to be named: more than everything else together."""
MORE_WORK_RATIO = 1.05
"""Ratio of operators to the peers' from which it is more work; equal work has exactly equal counts."""
HERTZ_PER_MHZ: Final = 1e6
CLOCK_RATIO = 0.95
"""An SM clock below this share of the peers' median is slow: boost clocks of healthy peers differ by 1 to 3 %."""

HARDWARE_XIDS = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140})
"""Xid errors of the GPU or its links, not of the program (NVIDIA's Xid catalogue): memory errors and row
remapping, NVLink, fallen off the bus, contained and uncontained memory errors, the GPU's own processor."""
PCIE_UTILIZATION_MIN: Final = 0.5
"""Utilization from which a GPU counts as busy: an idle one lowers the generation of its PCIe link to save power, and
raises it within milliseconds once it works. The width it keeps."""
HOST_CPU: Final = "host_cpu"
UNSEEN_WAIT: Final = "unseen_wait"
IDLE_EXCESS: Final = "idle_excess_ns"
"""Evidence key: how much longer its device is idle in a step than its peers'."""
COMPUTE_EXCESS: Final = "compute_excess_ns"
"""Evidence key: how much longer its device computes in a step than its peers'."""
COPY_EXCESS: Final = "host_copy_excess_ns"
"""Evidence key: for how much longer in a step than its peers' its device copies from its host and computes nothing."""
SLOW_COPIES: Final = "slow_copies"
CPU_PRESSURE: Final = "cpu_pressure"
NO_PHASES = frozenset(
    {"cpu", "gc", "host_copy", "compute", "idle", "sync", "core_wait", "block_io", "other_threads", RECOMPILATION}
)
"""Excesses that are not phases of the step."""


class Cause(NamedTuple):
    """A cause: its name, a clause that gives the reason, and the numbers behind it."""

    name: str
    because: str
    evidence: dict[str, float]


def find_cause(
    slow: SlowRank,
    series: StepSeries,
    samples: Samples,
    machines: Machines | None = None,
    all_excess_ns: Floats | None = None,
) -> Cause:
    """Return the cause of one straggler. Nothing is known of machines without `machines` and `all_excess_ns`, the
    excess of each rank of the series over its own peers, shape (n, ranks).
    """
    excess_ns = max(1.0, slow.excess_ns)  # of nothing, nothing would be half
    evidence = phase_excess(slow, series)
    old = find_old_signs(slow, samples)
    compiled_in = frozenset(series.steps[_judged_rows(slow, series)].tolist())
    for rule in (
        _data,
        _saves,
        partial(_recompilation, compiled_in),
        _garbage,
        _fault,
        _clock,
        _memory,
        _sync,
        _pcie,
        _copies,
        _window,
    ):
        cause = rule(slow, excess_ns, evidence, samples)
        if cause is not None:
            break
    else:
        has_device = series.is_by_device or bool(samples.devices.get(slow.rank))
        device_cause = _idle_device(slow, excess_ns, evidence, series, samples)
        cause = device_cause or _host(slow, excess_ns, evidence, series, samples, has_device=has_device)
    is_waiting = evidence.get(CPU_EXCESS, 0.0) < EXPLAINS * excess_ns  # a thread that computes has a CPU
    if cause[0] in {HOST_CPU, UNSEEN_WAIT} and is_waiting and machines is not None and all_excess_ns is not None:
        because = find_cpu_pressure(
            slow,
            EXPLAINS * excess_ns,
            evidence,
            series=series,
            all_excess_ns=all_excess_ns,
            machines=machines,
            share_of_steps=share_of_slow_steps(slow),
        )
        cause = cause if because is None else (CPU_PRESSURE, because)
    beside = f"{SHOWN_BEFORE}{', '.join(sorted(old))})" if old else ""
    return Cause(cause[0], cause[1] + beside, evidence)


def find_signs(device: DeviceSample) -> set[str]:
    """Return the signs of a fault that a GPU shows, also such as cost nothing."""
    width = _pcie_width(device)
    is_narrow = width is not None and width < (device.pcie_link_width_max or width)
    return _find_faults(device) | ({_name_width(width)} if is_narrow else set())


def find_old_signs(slow: SlowRank, samples: Samples) -> set[str]:
    """Return the signs that the rank's GPU has shown since before it became slow: they have not made it slow. Empty
    where the begin of the slowness is not known. One that was seen by a step was there in the one after it at the
    latest, whose report was yet to come.
    """
    if slow.before_step is None:
        return set()
    seen = samples.signs_by_step.get(slow.rank, {})
    return {sign for sign, by_step in seen.items() if by_step < slow.before_step}


def phase_excess(slow: SlowRank, series: StepSeries) -> dict[str, float]:
    """Return by how much each phase of the rank, and its CPU time, is longer than its peers', as `NAME_excess_ns`, and
    the CPU time of the peers. All steps of the present level count, for an intermittent slowness the slow ones.
    """
    rows = _judged_rows(slow, series)
    found: dict[str, float] = {}
    for name, values in sorted(series.phases_ns.items()):
        mine_ns, peers_ns = _medians(values, rows, slow, series)
        found[f"{name}_excess_ns"] = mine_ns - peers_ns
    mine_ns, found[PEERS_CPU] = _medians(series.cpu_ns, rows, slow, series)
    found[CPU_EXCESS] = mine_ns - found[PEERS_CPU]
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _judged_rows(slow: SlowRank, series: StepSeries) -> Ints:
    if slow.pattern == "intermittent":
        return np.flatnonzero(np.isin(series.steps, slow.slow_steps))
    return np.flatnonzero(series.steps >= slow.level_from_step)


def _medians(values: Cells, rows: Ints, slow: SlowRank, series: StepSeries) -> tuple[float, float]:
    """Return the rank's median and that of its peers' medians, over the steps known of the rank and of a peer (CPU time
    is measured on some steps only); NaN without such a step.
    """
    mine = values[rows, series.column_of(slow.rank)]
    peers = values[np.ix_(rows, series.columns_of(slow.peers.ranks))]
    known = ~np.isnan(mine) & ~np.isnan(peers).all(axis=1)
    if not known.any():
        return math.nan, math.nan
    return float(np.median(mine[known])), float(np.median(np.nanmedian(peers[known], axis=1)))


Verdict = tuple[str, str] | None
Window = WindowBreakdown | WindowSynchronizations


def _data(_slow: SlowRank, excess_ns: float, evidence: dict[str, float], _samples: Samples) -> Verdict:
    data_ns = evidence.get("data_excess_ns", 0.0)
    if data_ns < EXPLAINS * excess_ns:
        return None
    return "data_loading", f"{format_duration(data_ns)} more per step waiting for its data loader"


def _saves(_slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    because = find_slow_saves(_slow, EXPLAINS * excess_ns, evidence, samples)
    return None if because is None else (STORAGE, because)


def _recompilation(
    steps: Collection[int], slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples
) -> Verdict:
    longer_ns = compare_compilation(samples.compiled, slow.rank, slow.peers.ranks, steps)
    if not longer_ns:
        return None
    evidence[f"{RECOMPILATION}_excess_ns"] = longer_ns
    if longer_ns < EXPLAINS * excess_ns:
        return None
    return RECOMPILATION, describe_compilation(longer_ns, " more per step", samples.compiled, [slow.rank], steps)


def _garbage(slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    pauses = compare_times(slow, samples.gc_pauses)
    if pauses is None:
        return None
    pause_ns = (pauses.mine_ns - pauses.peers_ns) / share_of_slow_steps(slow)
    if not may_be_in_steps(slow, pause_ns):
        return None
    evidence["gc_excess_ns"] = pause_ns
    if pause_ns < EXPLAINS * excess_ns:
        return None
    return "garbage_collection", f"{format_duration(pause_ns)} more per step in Python's garbage collector"


def _fault(slow: SlowRank, _excess_ns: float, _evidence: dict[str, float], samples: Samples) -> Verdict:
    """Find a fault that the rank's GPU reports, and most of its peers' do not."""
    peers = [_find_faults(device) for peer in slow.peers.ranks for device in samples.devices.get(peer, ())]
    old = find_old_signs(slow, samples)
    for device in samples.devices.get(slow.rank, ()):
        new = _find_faults(device) - old
        mine = {found for found in new if 2 * sum(found in theirs for theirs in peers) <= len(peers)}
        if mine:
            return "gpu_fault", f"reported by its GPU: {', '.join(sorted(mine))}"
    return None


def _clock(slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    """Find a slow clock of the rank's GPU that can explain half of the excess; where clocks are not known, a throttle
    reason that most of its peers' GPUs do not report.
    """
    peers = [device for peer in slow.peers.ranks for device in samples.devices.get(peer, ())]
    for device in samples.devices.get(slow.rank, ()):
        ratio = _clock_ratio(device, peers)
        reasons = device.throttle_reasons or ()
        if ratio is None:
            cause = name_throttle([reason for reason in reasons if not _is_common(reason, peers)])
        else:
            evidence["sm_clock_ratio"] = ratio
            if ratio >= CLOCK_RATIO or slow.own_ns * (1 - ratio) < EXPLAINS * excess_ns:
                continue
            text = f"its GPU at {100 * ratio:.0f} % of its peers' clock ({_compare_clocks(device, peers)})"
            cause = name_throttle(reasons) or ("gpu_slow_clock", text)
        if cause is not None:
            return cause
    return None


def _pcie(slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    """Find a PCIe link with fewer lanes than those of most of its peers' GPUs, or of a lower generation while all of
    them are busy, and below its own maximum where that is known. It slows copies and launches, and no kernel: longer
    kernels have another cause.
    """
    if _computes_longer(slow, excess_ns, samples):
        return None
    peers = [device for peer in slow.peers.ranks if peer != slow.rank for device in samples.devices.get(peer, ())]
    for device in samples.devices.get(slow.rank, ()):
        most = {"lanes": device.pcie_link_width_max, "generation": device.pcie_link_generation_max}
        for read, what in ((_pcie_width, "lanes"), (_pcie_generation, "generation")):
            mine, theirs = read(device), [value for peer in peers if (value := read(peer)) is not None]
            usual = statistics.median_low(theirs) if theirs else 0
            if mine is None or mine >= min(usual, most[what] or usual):
                continue  # more than half of the known ones have the lower median, or more
            if what == "lanes" and _name_width(mine) in find_old_signs(slow, samples):
                continue
            evidence[f"pcie_{what}"], evidence[f"peers_pcie_{what}"] = mine, usual
            runs = f"with {mine} lane{'s' if mine > 1 else ''}" if what == "lanes" else f"at generation {mine}"
            preposition = "with" if what == "lanes" else "at"
            link = f"its GPU's PCIe link {runs}, those of its peers {preposition} {usual}"
            longer_ns = _compare_copies(slow, evidence, samples)
            copies = f", copies from its host {format_duration(longer_ns)} longer per step" if longer_ns > 0 else ""
            return "pcie_downgrade", f"{link}{copies}"
    return None


def _compare_copies(slow: SlowRank, evidence: dict[str, float], samples: Samples) -> float:
    """Return for how much longer in a step its device copies from its host and computes nothing, which is put into the
    evidence; 0 where that is not known.
    """
    exposed = _window_medians(slow, samples.breakdowns, "host_copies.exposed_ns")
    if exposed is None:
        return 0.0
    evidence[COPY_EXCESS] = exposed[0] - exposed[1]
    return evidence[COPY_EXCESS]


def _copies(slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    """Find copies from the host for which its device computes nothing for longer than its peers': slower ones, or, as
    more work, of more bytes. Where bytes are not known, copies are counted.
    """
    longer_ns = _compare_copies(slow, evidence, samples)
    if longer_ns < EXPLAINS * excess_ns:
        return None
    sizes, counts, unsized = (
        _window_medians(slow, samples.breakdowns, f"host_copies.{name}") or (0.0, 0.0)
        for name in ("bytes", "count", "unsized")
    )
    mine, theirs = counts if any(unsized) else sizes
    if mine >= MORE_WORK_RATIO * max(1.0, theirs):
        amounts = (
            f"{mine:.0f} copies from its host per step, {theirs:.0f}"
            if any(unsized)
            else f"{format_bytes(mine)} copied from its host per step, {format_bytes(theirs)}"
        )
        return "more_work", f"{amounts} on its peers"
    equal = "copies" if any(unsized) else "bytes"
    pageable = _window_medians(slow, samples.breakdowns, "host_copies.pageable_ns") or (0.0, 0.0)
    unpinned = ", from memory that its peers pin and it does not" if pageable[0] > 0 and not pageable[1] else ""
    longer = format_duration(longer_ns)
    return SLOW_COPIES, f"copies from its host {longer} longer per step for as many {equal}{unpinned}, its GPU waiting"


def _name_width(width: int | None) -> str:
    return f"a PCIe link with {width} lane{'' if width == 1 else 's'}"


def _pcie_width(device: DeviceSample) -> int | None:
    return _positive(device.pcie_link_width)


def _pcie_generation(device: DeviceSample) -> int | None:
    """Return the generation of a busy GPU's link; None for one that may have lowered it."""
    is_busy = (device.utilization_ratio or 0.0) >= PCIE_UTILIZATION_MIN
    return _positive(device.pcie_link_generation) if is_busy else None


def _positive(value: int | None) -> int | None:
    """Return the value; None for one of a link that is not there, as a virtual GPU's."""
    return value if value is not None and value > 0 else None


def _find_faults(device: DeviceSample) -> set[str]:
    """Return the faults that the GPU reports."""
    found = {f"Xid {device.xid_last}"} if device.xid_last in HARDWARE_XIDS else set()
    if device.ecc_uncorrected:
        found.add("uncorrectable memory errors")
    if device.remapping_failed:
        found.add("a failed row remapping")
    elif device.remapping_pending:
        found.add("a pending row remapping")
    return found


def _clock_ratio(device: DeviceSample, peers: Sequence[DeviceSample]) -> float | None:
    """Return its SM clock over the median of its peers'; None when not known."""
    peers_hertz = [peer.sm_clock_hertz for peer in peers if peer.sm_clock_hertz]
    if not device.sm_clock_hertz or not peers_hertz:
        return None
    return device.sm_clock_hertz / float(np.median(peers_hertz))


def _compare_clocks(device: DeviceSample, peers: Sequence[DeviceSample]) -> str:
    """Return its SM clock and the median of its peers', `1,200 against 1,980 MHz`; both are known."""
    theirs = float(np.median([peer.sm_clock_hertz for peer in peers if peer.sm_clock_hertz]))
    return f"{(device.sm_clock_hertz or 0) / HERTZ_PER_MHZ:,.0f} against {theirs / HERTZ_PER_MHZ:,.0f} MHz"


def _is_common(reason: str, peers: Sequence[DeviceSample]) -> bool:
    """Return whether at least half of the peers' GPUs report that reason too: GPUs at their power cap are healthy."""
    known = [peer.throttle_reasons for peer in peers if peer.throttle_reasons is not None]
    return bool(known) and 2 * sum(reason in reasons for reasons in known) >= len(known)


def name_throttle(reasons: Sequence[str]) -> Verdict:
    """Return the cause that throttle reasons name, heat before power; None when they name neither."""
    for word, name in (("thermal", "gpu_thermal_throttle"), ("power", "gpu_power_cap")):
        found = [reason for reason in reasons if word in reason]
        if found:
            return name, f"its GPU throttled ({', '.join(found)})"
    return None


def _memory(slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    """Find memory pressure, which stops a GPU between its kernels: longer kernels have another cause."""
    if _computes_longer(slow, excess_ns, samples):
        return None
    because = find_memory_pressure(slow, EXPLAINS * excess_ns, evidence, samples)
    return None if because is None else ("memory_pressure", because)


def _sync(slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    """Find calls in which the host waits longer for its GPU than its peers do, around whose end the GPU is idle longer,
    while its idle time as a whole is longer too.

    Idle time of a call is at most its wait. So where the host works after a wait, as on every rank, a GPU that computes
    longer lengthens the wait and with it the idle time of the call, but not that of the step.
    """
    windows = samples.synchronizations
    waits, around, idle = (
        _window_medians(slow, windows, "waits_ns"),
        _window_medians(slow, windows, "idle_ns"),
        _window_medians(slow, samples.breakdowns, "idle_ns"),
    )
    if waits is None or around is None or idle is None or _computes_longer(slow, excess_ns, samples):
        return None
    sync_ns = min(mine - peers for mine, peers in (waits, around, idle))
    evidence["sync_excess_ns"] = sync_ns
    if sync_ns < EXPLAINS * excess_ns:
        return None
    longer = format_duration(sync_ns)
    because = f"its host waiting at least {longer} more per step for the GPU, its GPU idle as much longer"
    mine, *peers = (
        [one for one in windows.get(rank, ()) if _is_judged(one, rank, slow)] for rank in (slow.rank, *slow.peers.ranks)
    )
    found = find_excess(mine, [one for one in peers if one], EXPLAINS * sync_ns)
    where = "" if found is None else f", {100 * min(1.0, found[1] / sync_ns):.0f} %{OF_IT}{describe_kind(found[0])}"
    return "host_device_sync", because + where


def _computes_longer(slow: SlowRank, excess_ns: float, samples: Samples) -> bool:
    """Return whether its GPU is known to compute longer by half of the excess."""
    compute = _window_medians(slow, samples.breakdowns, "compute_ns")
    return compute is not None and compute[0] - compute[1] >= EXPLAINS * excess_ns


def _window(slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples) -> Verdict:
    """Find in the windows more work or slower kernels, and put the idle time of a device into the evidence."""
    compute = _window_medians(slow, samples.breakdowns, "compute_ns")
    operators = _window_medians(slow, samples.breakdowns, "operator_count")
    idle = _window_medians(slow, samples.breakdowns, "idle_ns")
    if compute is None or idle is None:
        return None
    has_device = bool(samples.devices.get(slow.rank))
    evidence[COMPUTE_EXCESS] = compute[0] - compute[1]
    if operators is not None:
        evidence["operator_ratio"] = operators[0] / max(1.0, operators[1])
    if evidence[COMPUTE_EXCESS] >= EXPLAINS * excess_ns:
        if operators is not None and evidence["operator_ratio"] >= MORE_WORK_RATIO:
            where = _where(evidence, excess_ns)
            return (
                "more_work",
                f"{operators[0]:.0f} operators per step, {operators[1]:.0f} on its peers{where}",
            )
        if has_device:
            longer = f"{format_duration(evidence[COMPUTE_EXCESS])} more per step on its GPU"
            if samples.are_of_traces and operators is not None:
                return "gpu_compute", f"{longer}, in {operators[0]:.0f} kernels, {operators[1]:.0f} on its peers"
            return "gpu_compute", f"{longer} for the same work, no reason reported"
    if has_device or samples.are_of_traces:
        evidence[IDLE_EXCESS] = idle[0] - idle[1]
    return None


def _idle_device(
    slow: SlowRank, excess_ns: float, evidence: dict[str, float], series: StepSeries, samples: Samples
) -> Verdict:
    """Return why a device is idle longer: its host is at work, or on no CPU for as long, and so waits itself. A host
    that spins while it waits for its device or for others is at work all the time, and so are its peers' then.
    """
    if evidence.get(IDLE_EXCESS, 0.0) < EXPLAINS * excess_ns:
        return None
    longer = f"{format_duration(evidence[IDLE_EXCESS])} more per step"
    idle = f"its GPU idle {longer}"
    if samples.are_of_traces:
        held_up = f"{idle}, waiting for its host" if samples.devices.get(slow.rank) else f"{longer} in no operator"
        return HOST_CPU, f"{held_up}{_where(evidence, excess_ns)}"
    if CPU_EXCESS not in evidence:
        return "unattributed", f"{idle}, CPU time of its training thread not known"
    rows, column = _judged_rows(slow, series), series.column_of(slow.rank)
    evidence["off_cpu_ns"] = off_cpu_ns = float(
        np.nanmedian(series.step_ns[rows, column] - series.cpu_ns[rows, column])
    )
    is_at_work = find_longer_work(slow, EXPLAINS * excess_ns, evidence, samples) is not None
    if is_at_work or off_cpu_ns < EXPLAINS * excess_ns:
        return HOST_CPU, f"{idle}, waiting for its host{_where(evidence, excess_ns)}"
    return _waiting(slow, excess_ns, evidence, samples, idle=idle)


def _host(
    slow: SlowRank,
    excess_ns: float,
    evidence: dict[str, float],
    series: StepSeries,
    samples: Samples,
    *,
    has_device: bool,
) -> tuple[str, str]:
    """Return why a host without a device is slow: its training thread computes longer, or waits itself. On a GPU a slow
    host shows as an idle device, which only device windows measure; where they have not, waits for a core count as
    they are, and so does a wait in forward, if its thread computes as much less than its peers' do. Of a host in traces
    its operators and ranges are known, and no CPU time: `host_cpu` is whatever holds it up.
    """
    where = _where(evidence, excess_ns)
    computes_ns = evidence.get(COMPUTE_EXCESS, 0.0)
    is_in_operators = computes_ns >= EXPLAINS * excess_ns
    if samples.are_of_traces and (is_in_operators or where):
        longer = f"{format_duration(computes_ns)} more per step in operators"
        return HOST_CPU, f"{longer if is_in_operators else 'its host held up'}{where}"
    if not has_device and CPU_EXCESS in evidence:
        because = find_longer_work(slow, EXPLAINS * excess_ns, evidence, samples)
        if because is not None:
            return HOST_CPU, f"{because}{where}"
        return _waiting(slow, excess_ns, evidence, samples)
    is_device_busy = IDLE_EXCESS in evidence  # it is known, and no longer than the peers'
    for find, name in () if is_device_busy else ((find_block_io, STORAGE), (find_core_wait, CPU_PRESSURE)):
        because = find(slow, EXPLAINS * excess_ns, evidence, samples)
        if because is not None:
            return name, f"{because}{where}"
    held_up = _held_up_in_forward(slow, excess_ns, evidence, series, samples)
    return held_up or ("unattributed", f"no known cause{where}")


def _held_up_in_forward(
    slow: SlowRank, excess_ns: float, evidence: dict[str, float], series: StepSeries, samples: Samples
) -> Verdict:
    """Return why a host is longer in forward though its device is not known to be longer at anything: it is on no CPU
    for as long, or computes. Hosts that wait for their devices spin, in forward where the queue of launches is full: it
    would then compute as long as its peers. One that comes later to such a wait waits less, with the same CPU time.
    """
    least_ns, cpu_ns = EXPLAINS * excess_ns, evidence.get(CPU_EXCESS, 0.0)
    if evidence.get("forward_excess_ns", 0.0) < least_ns or evidence.get(COMPUTE_EXCESS, 0.0) >= least_ns:
        return None
    waits = _window_medians(slow, samples.synchronizations, "waits_ns")
    is_device_known = IDLE_EXCESS in evidence and not _is_device_longer(slow, least_ns, samples)
    if (
        waits is not None
        and is_device_known
        and _spin(slow, least_ns, evidence, series)
        and cpu_ns - (waits[0] - waits[1]) >= least_ns
    ):
        return HOST_CPU, f"its training thread computing longer{_where(evidence, excess_ns)}"
    return _waiting(slow, excess_ns, evidence, samples) if cpu_ns <= -least_ns else None


def _is_device_longer(slow: SlowRank, least_ns: float, samples: Samples) -> bool:
    """Return whether its device communicates or copies longer than its peers', so that launches may wait for it."""
    fields = ("exposed_communication_ns", "copy_ns")
    pairs = [_window_medians(slow, samples.breakdowns, field) for field in fields]
    return any(pair is None or pair[0] - pair[1] >= least_ns for pair in pairs)


def _spin(slow: SlowRank, least_ns: float, evidence: Mapping[str, float], series: StepSeries) -> bool:
    """Return whether its peers are on a CPU in all of a step but less than that: they spin while they wait."""
    _, step_ns = _medians(series.step_ns, _judged_rows(slow, series), slow, series)
    return PEERS_CPU in evidence and step_ns - evidence[PEERS_CPU] < least_ns


def _waiting(
    slow: SlowRank, excess_ns: float, evidence: dict[str, float], samples: Samples, *, idle: str = ""
) -> tuple[str, str]:
    """Return what a training thread waits for that does not compute longer than its peers': a CPU core, other threads
    of its process, or what is not seen. `idle` begins the clause where a device is idle meanwhile.
    """
    where = _where(evidence, excess_ns)
    for find, name in ((find_block_io, STORAGE), (find_core_wait, CPU_PRESSURE), (find_other_threads, HOST_CPU)):
        because = find(slow, EXPLAINS * excess_ns, evidence, samples)
        if because is not None:
            return name, f"{idle} and {because}{where}" if idle else f"{because}{where}"
    because = "its training thread off the CPU, waiting for something not measured"
    return UNSEEN_WAIT, f"{idle}, {because}{where}" if idle else f"{because}{where}"


def _where(evidence: Mapping[str, float], excess_ns: float) -> str:
    """Return the phase that holds at least half of the excess, as the end of a clause; empty when none does."""
    phases = {name.removesuffix("_excess_ns"): value for name, value in evidence.items() if name.endswith("_excess_ns")}
    part_ns, phase = max(((value, name) for name, value in phases.items() if name not in NO_PHASES), default=(0.0, ""))
    return f", {format_duration(part_ns)} of it in {phase}" if part_ns >= EXPLAINS * excess_ns else ""


def _window_medians(slow: SlowRank, windows: Mapping[int, Sequence[Window]], field: str) -> tuple[float, float] | None:
    """Return the median of a window's field per step at the present level: the rank's and its peers'. For an
    intermittent slowness only the rank's windows with a slow step count.
    """

    def per_step(rank: int) -> list[float]:
        return [
            float(value) / window.step_count
            for window in windows.get(rank, ())
            if _is_judged(window, rank, slow) and (value := _read_field(window, field)) is not None
        ]

    mine = per_step(slow.rank)
    peers = [value for peer in slow.peers.ranks for value in per_step(peer)]
    return (float(np.median(mine)), float(np.median(peers))) if mine and peers else None


def _read_field(window: Window, field: str) -> int | None:
    """Return a number of a window, `idle_ns`, or of a part that it may lack, `host_copies.bytes`."""
    part, _, name = field.rpartition(".")
    owner = getattr(window, part) if part else window
    found: int | None = None if owner is None else getattr(owner, name)
    return found


def _is_judged(window: Window, rank: int, slow: SlowRank) -> bool:
    """Return whether a window of this rank is of the present level, and for the slow rank has a slow step."""
    is_present = window.first_step >= slow.level_from_step and window.step_count > 0
    return is_present and (rank != slow.rank or _holds_slow_step(window, slow))


def _holds_slow_step(window: Window, slow: SlowRank) -> bool:
    if slow.pattern != "intermittent":
        return True
    end = window.first_step + window.step_count
    return bool(((slow.slow_steps >= window.first_step) & (slow.slow_steps < end)).any())
