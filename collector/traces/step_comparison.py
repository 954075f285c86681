"""Compare the time of a step between two sets of traces, part by part, or say why that must not be done."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from rankscope.collector.traces.call_matching import match_calls
from rankscope.collector.traces.net import attempt
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import (
    UNKNOWN_DEVICE,
    CallMatching,
    Comparison,
    DifferenceRow,
    DifferenceTable,
    RankWait,
)
from rankscope.collector.traces.step_parts import (
    IDLE,
    WAITING,
    Amount,
    DividedSteps,
    Label,
    Name,
    StepParts,
    split_waiting,
)

TABLES = ("kernels", "collectives", "operators", "modules", "ranges")
"""Tables in the order in which they are shown."""
WARNINGS_MAX = 10
HERE, THERE = "these traces", "the traces to compare with"

_Side = list[DividedSteps]
Waits = Sequence[RankWait] | None


def compare_steps(
    ranks: Sequence[RankAnalysis],
    others: Sequence[RankAnalysis],
    *,
    force: bool = False,
    waits: Waits = None,
    against_waits: Waits = None,
) -> Comparison:
    """Return the difference of the steps, mean over all steps of the ranks that both sides have (with other numbers of
    ranks: of all). `force` allows these numbers to differ. `waits` are those of the ranks of a side for each other,
    None where they are not known: then waiting is not told from communication.
    """
    files = [analysis.report.file for analysis in others]
    refused = _find_refusal(ranks, others, force=force)
    if refused is not None:
        return Comparison(against_files=files, refused=refused)
    ranks, others, notes = _choose_ranks(ranks, others)
    if not ranks:
        return Comparison(against_files=files, refused=f"no rank is on both sides: {notes[0]}")
    clock, here, there = _choose_clock(_parts_of(ranks), _parts_of(others))
    unknown: list[str] = []
    if waits is not None and against_waits is not None:
        here, there = _split_waiting(ranks, here, waits), _split_waiting(others, there, against_waits)
    elif any(analysis.report.communication_ns for analysis in (*ranks, *others)):
        side = HERE if waits is None else THERE
        unknown.append(f"how much of the communication is waiting for other ranks is not known of {side}")
    step_ns, against_ns = _mean_ns(here), _mean_ns(there)
    return Comparison(
        against_files=files,
        refused=None,
        notes=[*notes, *_note_differences(ranks, others), *unknown],
        clock=clock,
        ranks=[analysis.report.rank for analysis in ranks],
        against_ranks=[analysis.report.rank for analysis in others],
        steps=_count_steps(here),
        against_steps=_count_steps(there),
        step_ns=step_ns,
        against_step_ns=against_ns,
        difference_ns=step_ns - against_ns,
        tables=[
            _build_table(key, here, there, keeps_groups=not _have_other_worlds(ranks, others))
            for key in TABLES
            if _has_table(key, here) and _has_table(key, there)
        ],
        calls=attempt(lambda: _match_calls(ranks, others), _give_up_calls),
    )


def _give_up_calls(reason: str) -> CallMatching:
    return CallMatching(matched_count=0, added_count=0, removed_count=0, rows=[], notes=[f"not matched: {reason}"])


def _match_calls(found: Sequence[RankAnalysis], others: Sequence[RankAnalysis]) -> CallMatching | None:
    """Return the matched calls of the ranks on both sides, of single ranks whatever they are; None if not asked for."""
    there = {one.report.rank: one for one in others}
    if len(found) == len(others) == 1:
        there = {found[0].report.rank: others[0]}
    pairs = [(one.report.rank, one.calls, there[one.report.rank].calls) for one in found if one.report.rank in there]
    known = [(rank, ours, theirs) for rank, ours, theirs in pairs if ours is not None and theirs is not None]
    return match_calls(known) if known else None


# -- what may be compared ---------------------------------------------------------------------------------------------


def _find_refusal(found: Sequence[RankAnalysis], others: Sequence[RankAnalysis], *, force: bool) -> str | None:
    for side, ranks in ((HERE, found), (THERE, others)):
        reason = _find_refusal_of_side(ranks)
        if reason is not None:
            return reason.format(side=side)
    here, there = _is_cpu(found), _is_cpu(others)
    if here != there:
        cpu, device = (HERE, THERE) if here else (THERE, HERE)
        return f"{cpu} are of a CPU, {device} of a device: different things take their time"
    if _have_other_worlds(found, others) and not force:
        sizes = " and ".join(f"{size:,}" for size in sorted(_find_worlds(found, others)))
        return f"the runs have {sizes} ranks, which share the work out differently; --force compares them"
    return None


def _find_refusal_of_side(ranks: Sequence[RankAnalysis]) -> str | None:
    if not ranks:
        return "none of {side} can be used"
    unknown = [one.report.file for one in ranks if one.report.device == UNKNOWN_DEVICE]
    if unknown:
        return f"the device of {_escape(unknown[0])} is not known, so nothing of {{side}} is broken down"
    without = [one.report.file for one in ranks if one.parts is None]
    if without:
        reason = "call profiler.step() once a step" if not _has_steps(ranks, without[0]) else "it shows no work"
        return f"{_escape(without[0])} of {{side}} has no steps to compare: {reason}"
    if len({one.report.device == "CPU" for one in ranks}) > 1:
        return "{side} are of CPUs and of devices"
    return None


def _find_worlds(found: Sequence[RankAnalysis], others: Sequence[RankAnalysis]) -> set[int]:
    return {one.report.world_size for one in (*found, *others) if one.report.world_size is not None}


def _have_other_worlds(found: Sequence[RankAnalysis], others: Sequence[RankAnalysis]) -> bool:
    return len(_find_worlds(found, others)) > 1


def _escape(file: str) -> str:
    return file.replace("{", "{{").replace("}", "}}")


def _has_steps(ranks: Sequence[RankAnalysis], file: str) -> bool:
    return any(one.report.steps for one in ranks if one.report.file == file)


def _is_cpu(ranks: Sequence[RankAnalysis]) -> bool:
    return ranks[0].report.device == "CPU"


def _choose_ranks(
    found: Sequence[RankAnalysis], others: Sequence[RankAnalysis]
) -> tuple[Sequence[RankAnalysis], Sequence[RankAnalysis], list[str]]:
    """Return the analyses to compare, and a note where these are not all, or not of the same ranks."""
    here, there = ({one.report.rank for one in side} for side in (found, others))
    if here == there or _have_other_worlds(found, others):
        return found, others, [] if here == there else [f"all ranks: {_list(here)}, against {_list(there)}"]
    note = f"these traces are of {_list(here)}, those to compare with of {_list(there)}"
    if len(found) == len(others) == 1:
        return found, others, [note]
    both = here & there
    kept = [[one for one in side if one.report.rank in both] for side in (found, others)]
    return kept[0], kept[1], [f"only the ranks on both sides are compared: {note}" if both else note]


def _list(ranks: set[int | None]) -> str:
    known = sorted(rank for rank in ranks if rank is not None)
    texts = [*map(str, known), *(["an unknown rank"] if None in ranks else [])]
    return f"rank{'' if len(texts) == 1 else 's'} {', '.join(texts)}" if known else texts[0]


def _note_differences(found: Sequence[RankAnalysis], others: Sequence[RankAnalysis]) -> list[str]:
    """Return what else differs between the sides: devices, numbers of ranks, what was recorded; and the warnings."""
    notes = []
    for what, here, there in (
        ("device", *({str(one.report.device) for one in side} for side in (found, others))),
        ("backend", *({str(one.report.backend or "none") for one in side} for side in (found, others))),
        ("number of ranks", *({str(one.report.world_size or "unknown") for one in side} for side in (found, others))),
    ):
        if here != there:
            notes.append(f"the {what} differs: {', '.join(sorted(here))}, against {', '.join(sorted(there))}")
    notes += _note_recorded(*([parts.by_host for parts in _parts_of(side)] for side in (found, others)))
    return [*notes, *_find_warnings(HERE, found), *_find_warnings(THERE, others)]


def _note_recorded(here: _Side, there: _Side) -> list[str]:
    """Return what only one side has recorded."""
    notes = []
    for what, has, key in (
        ("modules, which costs time on the host", _has_table, "modules"),
        ("shapes: operators are matched without", _has_sizes, "operators"),
        ("bytes of collectives: they are matched without", _has_sizes, "collectives"),
    ):
        if has(key, here) != has(key, there):
            notes.append(f"only {HERE if has(key, here) else THERE} have {what}")
    return notes


def _find_warnings(side: str, ranks: Sequence[RankAnalysis]) -> list[str]:
    """Return the warnings of a side's traces, up to WARNINGS_MAX, and how many more there are."""
    found = Counter(warning for one in ranks for warning in one.report.warnings)
    shown = [f"{side}, {count} of {len(ranks)} files: {warning}" for warning, count in found.items()]
    more = len(shown) - WARNINGS_MAX
    return [*shown[:WARNINGS_MAX], f"{side}: {more:,} more warnings"] if more > 0 else shown


def _split_waiting(ranks: Sequence[RankAnalysis], side: _Side, waits: Sequence[RankWait]) -> _Side:
    """Return the steps of each rank with its waits for each other rank as parts of their own."""
    by_rank: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for one in waits:
        by_rank[one.rank][one.late_rank].append((one.start_ns, one.start_ns + one.wait_ns))
    known = [one for one in ranks if one.parts is not None]
    return [
        split_waiting(steps, {late: np.array(raw) for late, raw in by_rank[one.report.rank].items()})
        if one.report.rank is not None
        else steps
        for one, steps in zip(known, side, strict=True)
    ]


# -- the difference ---------------------------------------------------------------------------------------------------


def _parts_of(side: Sequence[RankAnalysis]) -> list[StepParts]:
    return [one.parts for one in side if one.parts is not None]


def _choose_clock(here: Sequence[StepParts], there: Sequence[StepParts]) -> tuple[str, _Side, _Side]:
    """Return both sides by the device's clock where all ranks have that, else by the host's."""
    sides = [[parts.by_device for parts in side if parts.by_device is not None] for side in (here, there)]
    if len(sides[0]) == len(here) and len(sides[1]) == len(there):
        return "device", sides[0], sides[1]
    return "host", [parts.by_host for parts in here], [parts.by_host for parts in there]


def _count_steps(side: _Side) -> int:
    return sum(one.step_count for one in side)


def _mean_ns(side: _Side) -> int:
    return sum(one.total_ns for one in side) // _count_steps(side)


def _has_table(key: str, side: _Side) -> bool:
    return any(key in one.tables for one in side)


def _build_table(key: str, here: _Side, there: _Side, *, keeps_groups: bool) -> DifferenceTable:
    """Return the parts of both sides by one way of naming them, the largest difference first. Shapes and bytes are in
    the names if both sides have them, the ranks of a group if `keeps_groups`.
    """
    whole_ns = _mean_ns(here) - _mean_ns(there)
    keeps_sizes = _has_sizes(key, here) and _has_sizes(key, there)
    ours, theirs = (_sum_side(key, side, keeps_groups=keeps_groups, keeps_sizes=keeps_sizes) for side in (here, there))
    nothing = Amount(0, 0)
    rows = [
        _build_row(
            label,
            ours.get(label, nothing),
            theirs.get(label, nothing),
            (_count_steps(here), _count_steps(there)),
            whole_ns,
        )
        for label in ours.keys() | theirs.keys()
    ]
    rows.sort(key=lambda row: (-abs(row.difference_ns), -max(row.step_ns, row.against_step_ns), row.kind, row.name))
    return DifferenceTable(key=key, rows=rows, remainder_ns=whole_ns - sum(row.difference_ns for row in rows))


def _has_sizes(key: str, side: _Side) -> bool:
    return any(label.name.size for one in side for label in one.tables.get(key, ()))


def _sum_side(key: str, side: _Side, *, keeps_groups: bool, keeps_sizes: bool) -> dict[Label, Amount]:
    """Return the parts of all ranks of a side. A rank without this table has its time in a row without a name."""
    found: dict[Label, Amount] = defaultdict(lambda: Amount(0, 0))
    for one in side:
        missing = {Label("other", Name("ranks without this table")): Amount(one.total_ns, 0)}
        for (kind, name), amount in one.tables.get(key, missing).items():
            label = Label(kind, Name(name.text, name.group * keeps_groups, name.size * keeps_sizes))
            sofar = found[label]
            found[label] = Amount(sofar.total_ns + amount.total_ns, sofar.pieces + amount.pieces)
    return dict(found)


def _build_row(label: Label, ours: Amount, theirs: Amount, steps: tuple[int, int], whole_ns: int) -> DifferenceRow:
    step_ns, against_ns = ours.total_ns // steps[0], theirs.total_ns // steps[1]
    return DifferenceRow(
        kind=label.kind,
        name="".join(label.name),
        step_ns=step_ns,
        against_step_ns=against_ns,
        difference_ns=step_ns - against_ns,
        share_ratio=(step_ns - against_ns) / whole_ns if whole_ns else None,
        step_count=ours.pieces / steps[0] if label.kind not in {IDLE, WAITING} else None,
        against_step_count=theirs.pieces / steps[1] if label.kind not in {IDLE, WAITING} else None,
    )
