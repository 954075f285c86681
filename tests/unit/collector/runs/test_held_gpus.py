"""States of held GPUs, who has idle ones, and the bounds of what is told."""

import msgspec
import pytest

from rankscope.collector.reports.held_gpu_table import render_held
from rankscope.collector.runs.held_gpus import (
    LISTED_MAX,
    OTHERS,
    OWNERS_MAX,
    SUMMARY_NS,
    TOLD_NS_MAX,
    GpuSummary,
    find_owner,
    find_state,
    summarize,
)
from rankscope.measure.held_gpus import GpuHolder, HeldGpu, NodeGpus
from rankscope.measure.units import NS_PER_S

AFTER_S = 600.0
AFTER_NS = 600 * NS_PER_S
ANA = GpuHolder(11, "ana", "7", "python", 40 << 30)


def gpu_of(uuid: str = "GPU-0", holder: GpuHolder = ANA, held_s: int = 700, idle_s: int | None = 700) -> HeldGpu:
    idle_ns = None if idle_s is None else idle_s * NS_PER_S
    return HeldGpu(
        uuid, 0, "H100", memory_used_bytes=40 << 30, memory_total_bytes=80 << 30, holders=(holder,),
        held_ns=held_s * NS_PER_S, idle_ns=idle_ns,
    )  # fmt: skip


def watched(idle_s: int | None, step_age_s: int) -> HeldGpu:
    return msgspec.structs.replace(gpu_of(idle_s=idle_s), run="r", rank=3, step_age_ns=step_age_s * NS_PER_S)


@pytest.mark.parametrize(
    ("gpu", "state"),
    [
        (HeldGpu("GPU-0", 0, utilization_ratio=0.0), "free"),
        (gpu_of(idle_s=600), "idle"),
        (gpu_of(idle_s=599), "in_use"),
        (gpu_of(idle_s=None), "unknown"),
        (watched(idle_s=700, step_age_s=1), "watched"),
        (watched(idle_s=10, step_age_s=700), "watched"),
        (watched(idle_s=None, step_age_s=700), "watched"),
        (watched(idle_s=600, step_age_s=600), "watched_idle"),
    ],
)
def test_state_of_a_gpu(gpu: HeldGpu, state: str) -> None:
    assert find_state(gpu, AFTER_NS) == state


def test_owner_is_who_has_most_memory_among_those_that_are_known() -> None:
    unseen = GpuHolder(5, memory_bytes=70 << 30)
    small = GpuHolder(12, "ben", "8", "python", 1 << 30)
    gpu = msgspec.structs.replace(gpu_of(), holders=(unseen, small, ANA))
    assert find_owner(gpu) is ANA
    assert find_owner(msgspec.structs.replace(gpu, holders=(unseen,))) is unseen
    assert find_owner(msgspec.structs.replace(gpu, holders=())).user == ""


def test_owners_beyond_the_bound_are_summed_up() -> None:
    """70 users with one idle GPU each, and one with two: 64 are told apart, seven GPUs are of others."""
    many = [gpu_of(f"GPU-{place}", GpuHolder(1, f"user-{place:02}", "1")) for place in range(70)]
    twice = [gpu_of(f"GPU-b{place}", idle_s=800 + place) for place in range(2)]
    held = summarize([NodeGpus("n", tuple(many)), NodeGpus("m", tuple(twice))], AFTER_S)
    first, last = held.owners[0], held.owners[-1]
    assert (first.user, first.gpus, first.longest_s) == ("ana", 2, 801.0)
    assert (len(held.owners), last.user, last.job, last.gpus) == (OWNERS_MAX + 1, OTHERS, OTHERS, 7)
    assert sum(one.gpus for one in held.owners) == held.states["idle"] == 72


def test_list_is_bounded_with_the_longest_idle_first() -> None:
    nodes = [
        NodeGpus(f"n{place}", (gpu_of(f"GPU-{place}", idle_s=600 + place, held_s=9_000),))
        for place in range(LISTED_MAX + 3)
    ]
    held = summarize(nodes, AFTER_S)
    assert (len(held.listed), held.listed_left_out) == (LISTED_MAX, 3)
    assert [held.listed[0].idle_s, held.listed[-1].idle_s] == [600.0 + LISTED_MAX + 2, 603.0]


def test_gpu_that_two_relays_tell_of_counts_once() -> None:
    held = summarize([NodeGpus("n", (gpu_of(),)), NodeGpus("n", (gpu_of(),))], AFTER_S)
    assert (held.nodes, held.states["idle"]) == (1, 1)


def test_reading_that_is_not_renewed_is_forgotten() -> None:
    summary, told = GpuSummary(AFTER_S), {b"relay-n1": NodeGpus("n", (gpu_of(),))}
    assert summary.update({}, 0) is None
    found = summary.update(told, SUMMARY_NS)
    assert found is not None
    assert found.states["idle"] == 1
    assert summary.update({}, SUMMARY_NS + 1) is found  # not due yet
    assert summary.update(told, SUMMARY_NS + TOLD_NS_MAX - 1) is not None
    assert summary.update(told, 2 * SUMMARY_NS + TOLD_NS_MAX) is None
    assert summary.update({b"relay-n1": NodeGpus("n", (gpu_of(),))}, 4 * SUMMARY_NS + TOLD_NS_MAX) is not None


def test_table_says_who_holds_what_and_for_how_long() -> None:
    held = summarize(
        [
            NodeGpus("node-7", (gpu_of(held_s=4_500, idle_s=2_520),)),
            NodeGpus("node-8", unread="driver_not_loaded"),
        ],
        AFTER_S,
    )
    assert render_held(held).splitlines() == [
        "node    gpu  idle for  held for  memory    user  job  program  watched",
        "node-7  0    42.0 min  1.2 h     40.0 GiB  ana   7    python   -",
        "1 of 1 GPU held and idle: no kernel at any reading for 10.0 min, and no rank that reports through the relay",
        "1 node not read: driver_not_loaded",
    ]


def test_table_names_the_rank_that_is_watched_without_a_step() -> None:
    lines = render_held(summarize([NodeGpus("node-7", (watched(660, 720),))], AFTER_S)).splitlines()
    assert lines[1].endswith("python   r rank 3, no step for 12.0 min")
    assert lines[2].startswith("0 of 1 GPU held and idle")
    assert lines[3] == "1 watched without a step or a kernel for 10.0 min"
