"""Render who holds GPUs that do nothing, for a terminal."""

from typing import Final

from rankscope.collector.reports.trace_cells import align, printable
from rankscope.collector.runs.held_gpus import FREE, IDLE, IN_USE, UNKNOWN, WATCHED, WATCHED_IDLE, HeldGpus, ListedGpu
from rankscope.measure.units import format_bytes, format_length

HEADS: Final = ("node", "gpu", "idle for", "held for", "memory", "user", "job", "program", "watched")


def render_held(held: HeldGpus) -> str:
    """Return a table of the GPUs that are held and do nothing, and the counts of all."""
    lines = align([HEADS, *map(_build_cells, held.listed)]) if held.listed else []
    if held.listed_left_out:
        lines.append(f"{held.listed_left_out} more GPU{'s' * (held.listed_left_out != 1)}")
    return "\n".join([*lines, *describe_counts(held)])


def describe_counts(held: HeldGpus) -> list[str]:
    """Return how many GPUs are in which state, in words, and how many nodes could not be read."""
    after = format_length(held.idle_after_s)
    count, states = held.gpus, held.states
    lines = []
    if count:
        lines.append(
            f"{states.get(IDLE, 0)} of {count} GPU{'s' * (count != 1)} held and idle: no kernel at any reading for "
            f"{after}, and no rank that reports through the relay"
        )
        words = {
            WATCHED: "watched",
            WATCHED_IDLE: f"watched without a step or a kernel for {after}",
            IN_USE: "in use by others",
            UNKNOWN: "held by others, utilization not known",
            FREE: "free",
        }
        lines.append(", ".join(f"{states[state]} {text}" for state, text in words.items() if states.get(state)))
    for reason, nodes in held.unread.items():
        lines.append(f"{nodes} node{'s' * (nodes != 1)} not read: {printable(reason)}")
    return [line for line in lines if line]


def _build_cells(gpu: ListedGpu) -> tuple[str, ...]:
    watched = "-"
    if gpu.rank is not None:
        age = "" if gpu.step_age_s is None else f", no step for {format_length(gpu.step_age_s)}"
        watched = f"{printable(gpu.run)} rank {gpu.rank}{age}"
    more = f" (+{gpu.processes - 1})" if gpu.processes > 1 else ""
    return (
        printable(gpu.node),
        str(gpu.index),
        format_length(gpu.idle_s),
        format_length(gpu.held_s),
        "-" if gpu.memory_used_bytes is None else format_bytes(gpu.memory_used_bytes),
        printable(gpu.user) or "-",
        printable(gpu.job) or "-",
        f"{printable(gpu.program)}{more}" if gpu.program else ("no process" if not gpu.processes else "-"),
        watched,
    )
