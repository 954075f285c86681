"""Render what a pre-flight concluded as text: a table of the nodes, the reasons, what was left out, and the verdict."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.agent.preflight.checks import NodeCheck
from rankscope.agent.preflight.judgement import find_slowest, list_subjects
from rankscope.agent.preflight.results import PreflightReport, RankResults, Slow
from rankscope.measure.text import to_line

NODES_SHOWN_MAX: Final = 32
NOTES_SHOWN_MAX: Final = 16
NAMES_SHOWN_MAX: Final = 8
NODE_LENGTH_MAX: Final = 40
CPU_SHARE_RATIO: Final = 0.8
"""Share of the CPU beside that of the peers below which it explains a slow matrix product."""


def describe_slow(slow: Slow, check: NodeCheck, results: Sequence[RankResults]) -> str:
    """Return the sentence about a slow check of a node, a rank or a link."""
    own, against = f"{slow.own:.3g} {check.unit}", f"{slow.against:.3g}"
    if slow.other:
        where = f"{check.title}, between {_name(slow.node)} and {_name(slow.other)}"
        return f"{where}: {own} against {against} of {slow.peers} other pairs ({slow.ratio:.2f} of that), both times"
    subject = check.title if slow.rank is None else f"{check.title} of rank {slow.rank}"
    others = "peer nodes" if slow.rank is None else "peer ranks"
    whom = f"in its last {slow.peers} pre-flights" if slow.is_past else f"of its {slow.peers} {others}"
    return f"{subject}: {own} against {against} {whom} ({slow.ratio:.2f} of that), both times{_explain(slow, results)}"


def _explain(slow: Slow, results: Sequence[RankResults]) -> str:
    """Return what the CPU share says about slow matrix products; empty where that is nothing."""
    if not slow.check.startswith("matmul_"):
        return ""
    shares = {one.rank: one.cpu_share for one in results if one.cpu_share is not None}
    own = shares.pop(-1 if slow.rank is None else slow.rank, None)
    if own is None or not shares:
        return ""
    usual = statistics.median(shares.values())
    if own >= CPU_SHARE_RATIO * usual:
        return f"; its threads ran for {own:.2f} of the time, as those of others"
    return (
        f"; its threads ran for {own:.2f} of the time, those of others for {usual:.2f}: other processes, or a limit of "
        "CPU time, may be why"
    )


def build_sentence(named: Sequence[str], links: int, nodes: int, compared: Sequence[str]) -> str:
    """Return the verdict of a complete pre-flight.

    >>> build_sentence(["node-2"], 0, 4, ["disk"])
    '1 of 4 nodes was named: node-2.'
    >>> build_sentence([], 0, 4, []).partition(":")[0]
    'Not judged'
    """
    parts = []
    if named:
        names = ", ".join(_name(name) for name in named[:NAMES_SHOWN_MAX])
        more = f" and {len(named) - NAMES_SHOWN_MAX} others" if len(named) > NAMES_SHOWN_MAX else ""
        parts.append(f"{len(named)} of {nodes} nodes {'was' if len(named) == 1 else 'were'} named: {names}{more}.")
    if links:
        which = "nodes that are not slow themselves; no node is excluded for that"
        parts.append(f"{links} slow link{'s' * (links != 1)} between {which}.")
    if parts:
        return " ".join(parts)
    if not compared:
        return (
            "Not judged: nothing could be compared, and no error count names a node. "
            "Three other nodes with the same device, or three earlier pre-flights of a node, are needed."
        )
    return f"No node was named: {nodes} node{'s' * (nodes != 1)}, {len(compared)} checks compared."


def render(report: PreflightReport, checks: Sequence[NodeCheck]) -> str:
    """Return the text of a complete pre-flight, with its verdict as the last line."""
    device = to_line(", ".join(sorted({one.device for one in report.results})), 120)
    counts = f"{_count(report.ranks, 'rank')}, {_count(len(report.nodes), 'node')}"
    lines = [
        f"rankscope preflight: {counts}, {device}; {report.took_s:.1f} s",
        *_build_table(report, checks),
    ]
    for one in report.named:
        lines += [f"{_name(one.node)}: {to_line(reason)}" for reason in one.reasons]
    lines += [f"slow link: {to_line(link)}" for link in report.links]
    for title, reason in report.not_compared.items():
        lines.append(f"not compared{' for all' * (title in report.compared)}: {title}: {reason}")
    if report.left_out:
        lines.append(f"left out for lack of time (--budget-s): {', '.join(report.left_out)}")
    lines += [f"note: {to_line(note)}" for note in report.notes[:NOTES_SHOWN_MAX]]
    if len(report.notes) > NOTES_SHOWN_MAX:
        lines.append(f"and {len(report.notes) - NOTES_SHOWN_MAX} other notes (--json-file)")
    if report.past:
        lines.append(f"past: {to_line(report.past)}")
    return "\n".join([*lines, f"verdict: {report.sentence}"])


def _build_table(report: PreflightReport, checks: Sequence[NodeCheck]) -> list[str]:
    columns = [(check, find_slowest(list_subjects(report.results, check))) for check in checks]
    columns = [(check, found) for check, found in columns if found]
    marked = {(one.node, one.check) for one in report.slow if not one.other}
    named = [one.node for one in report.named]
    shown = [*named, *(node for node in report.nodes if node not in named)]
    rows = [("node (its slowest rank)", *(f"{check.title} {check.unit}" for check, _ in columns))]
    for node in shown[:NODES_SHOWN_MAX]:
        cells = []
        for check, found in columns:
            value = f"{statistics.median(found[node].values):.3g}" if node in found else "-"
            cells.append(value + " slow" * ((node, check.name) in marked))
        rows.append((_name(node), *cells))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    others = len(shown) - NODES_SHOWN_MAX
    return [*lines, *([f"and {others} other nodes (--json-file)"] if others > 0 else [])]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _name(node: str) -> str:
    return to_line(node, NODE_LENGTH_MAX)


def collect_reasons(
    slow: Sequence[Slow], checks: Mapping[str, NodeCheck], results: Sequence[RankResults]
) -> dict[str, list[str]]:
    """Return the reasons by node why it is named: slow checks, and faults."""
    reasons: dict[str, list[str]] = {}
    for one in slow:
        if not one.other:
            reasons.setdefault(one.node, []).append(describe_slow(one, checks[one.check], results))
    for result in results:
        for fault in result.faults:
            reasons.setdefault(result.node, []).append(f"rank {result.rank}: {fault}")
    return reasons
