"""Build the answers of the API about ranks: lists of ranks, and one rank beside its peers. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
import numpy as np

from rankscope.collector.runs.blocked_lines import BlockingCalls, list_blocking_calls
from rankscope.collector.runs.heat_map import HeatMapSteps, Numbers
from rankscope.collector.runs.host_copies import describe_host_copies
from rankscope.collector.runs.memory_words import describe_memory
from rankscope.collector.runs.rank_orders import sort_ranks
from rankscope.collector.runs.ratio_basis import NO_WINDOW, RatioBasis
from rankscope.collector.runs.ratios import read_ratios
from rankscope.collector.runs.run_flops import describe_rank_flops
from rankscope.collector.runs.run_ratios import describe_basis
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.steps.peer_groups import PeerComparison
from rankscope.collector.steps.rank_medians import describe_median_steps
from rankscope.measure.records import DeviceSample


class ListedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The last sample of a rank's GPU, the first one of several; None: not known. The ratio is of NVML, or amdsmi."""

    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None
    sm_clock_hertz: int | None


class ListedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in a list of ranks, as in RankSnapshot; `ratios` are of its last profiled windows, by name, and stand on
    `ratio_basis`, which says why there are none. `mfu_ratio` is that of its last minute of steps; None: not known.
    `gpu` is None while none was sampled. `last_report_wall_s`, in seconds since 1970: None before any report.
    """

    rank: int
    local_rank: int
    node: str
    up: bool
    ended: str | None
    stalled: bool | None
    last_report_wall_s: float | None
    last_step: int | None
    step_ns_median: float | None
    own_ns_median: float | None
    slowdown_ratio: float | None
    wait_caused_ns_median: float | None
    phases_ns_median: Mapping[str, float]
    ratios: Mapping[str, float]
    ratio_basis: RatioBasis = NO_WINDOW
    mfu_ratio: float | None = None
    gpu: ListedGpu | None = None


class RankList(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a run's `ranks_known` ranks, in the order that was asked for. `medians_said`: which steps their medians
    are of; empty before there are any.
    """

    run: str
    ranks_known: int
    ranks: tuple[ListedRank, ...]
    medians_said: str = ""


class PeerMedians(msgspec.Struct, frozen=True, kw_only=True):
    """The peer ranks of a rank: `count` ranks, of which at most 128, evenly spread, are read (`ranks`). `do_same_work`
    is False when too few ranks do the same work and the rank is compared with all ranks. The other fields are medians
    over `ranks` of the fields of RankSnapshot; `ratios` are of the last profiler windows. None: not known for any rank.
    """

    do_same_work: bool
    count: int
    ranks: tuple[int, ...]
    step_ns_median: float | None
    own_ns_median: float | None
    wait_caused_ns_median: float | None
    phases_ns_median: Mapping[str, float]
    ratios: Mapping[str, float]


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Own time of one rank and of its peers in the last steps in which ranks could be compared, in ns. Every list has
    the length of `steps`; null: not known. Of the peers' own times: the median, the minimum and the maximum.
    """

    attempt: int
    steps: tuple[int, ...]
    own_ns: tuple[float | None, ...]
    slowdown_ratio: tuple[float | None, ...]
    peers_own_ns_median: tuple[float | None, ...]
    peers_own_ns_min: tuple[float | None, ...]
    peers_own_ns_max: tuple[float | None, ...]


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One rank beside its peers. `gpu_model` is None without a GPU; `ratios` are of its last profiled windows, by name;
    `ratios_said` says what these stand on or why there are none (its `ratio_basis` in words). `peers` and `recent` are
    None before detection has looked at it.
    `blocking_calls` are those with the longest waits, None before the first full window of a GPU and where the ratios
    are absent. `memory_said` says what memory the rank has in use and left, `flops_said` what its last minute of steps
    needed and its MFU, `host_copies_said` what it copies from the host in a step; empty where nothing is known.
    """

    run: str
    number: int
    node: str
    local_rank: int
    pid: int
    gpu_model: str | None
    rank: RankSnapshot
    ratios: Mapping[str, float]
    peers: PeerMedians | None = None
    recent: RankSteps | None = None
    ratios_said: str = ""
    blocking_calls: tuple[BlockingCalls, ...] | None = None
    memory_said: str = ""
    flops_said: str = ""
    host_copies_said: str = ""


def list_ranks(run: RunSnapshot, order: str, offset: int, limit: int, *, is_reversed: bool = False) -> RankList:
    """Return `limit` ranks from `offset` on, in one of the ORDERS of rank_orders.py."""
    ranks = sort_ranks(run.ranks, order, offset + limit, is_reversed=is_reversed)
    lines = tuple(_to_line(rank) for rank in ranks[offset:])
    return RankList(
        run=run.run, ranks_known=len(run.ranks), ranks=lines, medians_said=describe_median_steps(run.medians_of)
    )


def show_rank(run: RunSnapshot, number: int, recent_steps: HeatMapSteps | None) -> RankAnswer | None:
    """Return one rank; None for an unknown one."""
    found = next((rank for rank in run.ranks if rank.identity.rank == number), None)
    if found is None:
        return None
    identity = found.identity
    answer = RankAnswer(
        run=run.run,
        number=number,
        node=identity.node,
        local_rank=identity.local_rank,
        pid=identity.pid,
        gpu_model=found.devices[0].model or None if found.devices else None,
        rank=found,
        ratios=read_ratios(found.breakdown),
        ratios_said=found.ratio_basis.absent or describe_basis(found.ratio_basis),
        blocking_calls=None if found.ratio_basis.absent else list_blocking_calls(found.synchronizations),
        memory_said=describe_memory(found, run.ranks),
        flops_said=describe_rank_flops(found.flops),
        host_copies_said=describe_host_copies(found.breakdown),
    )
    column = None if recent_steps is None else recent_steps.find_column(number)
    if recent_steps is None or column is None:
        return answer
    comparison = recent_steps.peer_groups.of(number)
    return msgspec.structs.replace(
        answer, peers=_compare(run, number, comparison), recent=_show_steps(recent_steps, column, comparison)
    )


def _to_line(rank: RankSnapshot) -> ListedRank:
    return ListedRank(
        rank=rank.identity.rank,
        local_rank=rank.identity.local_rank,
        node=rank.identity.node,
        up=rank.up,
        ended=rank.ended,
        stalled=rank.stalled,
        last_report_wall_s=rank.last_report_wall_s,
        last_step=rank.last_step,
        step_ns_median=rank.step_ns_median,
        own_ns_median=rank.own_ns_median,
        slowdown_ratio=rank.slowdown_ratio,
        wait_caused_ns_median=rank.wait_caused_ns_median,
        phases_ns_median=rank.phases_ns_median,
        ratios=read_ratios(rank.breakdown),
        ratio_basis=rank.ratio_basis,
        mfu_ratio=rank.flops.mfu,
        gpu=_list_gpu(rank.devices),
    )


def _list_gpu(devices: Sequence[DeviceSample]) -> ListedGpu | None:
    """Return the first GPU; None without one."""
    if not devices:
        return None
    return ListedGpu(**{name: getattr(devices[0], name) for name in ListedGpu.__struct_fields__})


def _compare(run: RunSnapshot, number: int, comparison: PeerComparison) -> PeerMedians:
    peers = comparison.peers_of(number)
    asked = set(peers.ranks)
    read = [rank for rank in run.ranks if rank.identity.rank in asked]
    return PeerMedians(
        do_same_work=peers.do_same_work,
        count=peers.size,
        ranks=peers.ranks,
        step_ns_median=_median_of([rank.step_ns_median for rank in read]),
        own_ns_median=_median_of([rank.own_ns_median for rank in read]),
        wait_caused_ns_median=_median_of([rank.wait_caused_ns_median for rank in read]),
        phases_ns_median=_medians_by_name([rank.phases_ns_median for rank in read]),
        ratios=_medians_by_name([read_ratios(rank.breakdown) for rank in read]),
    )


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _medians_by_name(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for one in found for name in one}
    return {name: median(one[name] for one in found if name in one) for name in sorted(names)}


def _show_steps(recent_steps: HeatMapSteps, column: int, comparison: PeerComparison) -> RankSteps:
    against = recent_steps.find_columns(comparison.against)
    others = recent_steps.own_ns[:, against[against != column]]
    over_peers = {"median": _medians(others)}
    if others.shape[1]:
        # Not nanmin, which warns about a row of NaN.
        over_peers |= {"min": np.fmin.reduce(others, axis=1), "max": np.fmax.reduce(others, axis=1)}
    else:
        over_peers |= {"min": over_peers["median"], "max": over_peers["median"]}
    return RankSteps(
        attempt=recent_steps.attempt,
        steps=tuple(recent_steps.steps.tolist()),
        own_ns=_known_or_none(recent_steps.own_ns[:, column]),
        slowdown_ratio=_known_or_none(np.exp(recent_steps.excess[:, column])),
        **{f"peers_own_ns_{name}": _known_or_none(values) for name, values in over_peers.items()},
    )


def _medians(values: Numbers) -> Numbers:
    """Return the median of the known values of each row, NaN without any; shape (n, m) to (n,)."""
    found = np.full(len(values), np.nan, dtype=np.float32)
    gaps = np.isnan(values)
    complete = ~gaps.any(axis=1)
    if values.shape[1]:
        found[complete] = np.median(values[complete], axis=1)
    for row in np.flatnonzero(~complete & ~gaps.all(axis=1)):
        found[row] = np.median(values[row, ~gaps[row]])
    return found


def _known_or_none(values: Numbers) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else value for value in values.tolist())
