"""Write docs/frameworks.md from the outcomes. Pure."""

from collections.abc import Mapping, Sequence

from tests.frameworks.outcome import Outcome
from tests.frameworks.rows import Row

HEAD = """# Frameworks, really run

`make test-frameworks` runs each job below three ways: without the monitor, with it (`RANKSCOPE=1`, no call of ours in
the script), and with it while one rank sleeps longer in each forward. It writes this page; the jobs are in
`tests/frameworks/jobs`. Those of PyTorch itself are started by `-m rankscope.agent` in forks with one import of torch.

{machine}

This is of the run that was last; rows that it did not run are of earlier ones.

- **Steps**: of each rank, as the framework counts them (or the script, where it has no count of its own) and as we do.
- **Phases**: means of a step of rank 0, in ms, without the fault.
- **Groups**: the process groups in which collectives were seen, with their operations.
- **Slow rank**: whether the rank that slept longer was named, and no other. **Healthy run**: whether a rank was accused
  of anything in the run without a fault. The jobs share their cores with others: less than 1.2x is not counted, and a
  rank that waited for a core is "held up", which the monitor says as the cause.
- **Same**: losses to the last digit on all ranks, exit status, and output (but for numbers in it) as without the
  monitor, and nothing left behind.

Each forward also sleeps 4 ms on all ranks, in place of a device that computes. All jobs run on CPUs over gloo,
with windows more often than by default, since each lasts some seconds only. What a framework does on GPUs is not shown
by this page, and neither is what the monitor costs ([cost.md](cost.md)).

"""
TABLE = """| framework | version | what ran | ranks | steps: theirs / ours | phases | slow rank | healthy run | same |
|---|---|---|---|---|---|---|---|---|
"""


def write_page(rows: Sequence[Row], outcomes: Mapping[str, Outcome], machine: str) -> str:
    """Return the page. A row without an outcome has not been run yet, and says so."""
    ran = [row for row in rows if row.name in outcomes and not outcomes[row.name].error]
    lines = [_write_row(row, outcomes.get(row.name)) for row in rows]
    groups = [_write_groups(row, outcomes[row.name]) for row in ran if outcomes[row.name].groups]
    notes = [_write_notes(row, outcomes[row.name]) for row in rows if row.name in outcomes]
    unseen = [f"- **{row.framework}, {row.what}**: {row.unseen}" for row in ran if row.unseen]
    return (
        HEAD.format(machine=machine)
        + TABLE
        + "".join(lines)
        + "\n## Process groups\n\n| framework | what ran | groups and their operations |\n|---|---|---|\n"
        + "".join(groups)
        + "\n## What was said of the slow rank, and what differed\n\n"
        + "".join(notes)
        + "\n## What is not seen\n\n"
        + "\n".join(unseen)
        + "\n"
    )


def _write_row(row: Row, outcome: Outcome | None) -> str:
    head = [row.framework, outcome.version if outcome else "", row.what, str(row.ranks)]
    if outcome is None:
        return _to_line([*head, "not run yet", "", "", "", ""])
    if outcome.error:
        return _to_line([*head, f"cannot be run: `{_escape(outcome.error)}`", "", "", "", ""])
    phases = ", ".join(f"{name} {ms:.1f}" for name, ms in outcome.phases_ms.items())
    steps = f"{_join(outcome.theirs)} / {_join(outcome.ours)}"
    steps = steps if outcome.theirs == outcome.ours else f"**{steps}**"
    return _to_line(
        [*head, steps, phases, _describe_named(outcome), _describe_accused(outcome), _describe_same(outcome)]
    )


def _join(steps: Sequence[int]) -> str:
    """Return the steps of the ranks, once where they are the same.

    >>> _join([400, 400]), _join([400, 390])
    ('400', '400, 390')
    """
    return str(steps[0]) if len(set(steps)) == 1 else ", ".join(map(str, steps))


def _describe_named(outcome: Outcome) -> str:
    if outcome.named == (outcome.slow_rank,):
        return "named"
    return f"**named {_join(outcome.named)}**" if outcome.named else "**not named**"


def _describe_accused(outcome: Outcome) -> str:
    if outcome.accused:
        return f"**{len(outcome.accused)} accused**"
    return "held up by the machine" if outcome.held_up else "nobody accused"


def _describe_same(outcome: Outcome) -> str:
    return "**no**" if outcome.differs else "yes"


def _write_groups(row: Row, outcome: Outcome) -> str:
    groups = "; ".join(f"`{name}`: {', '.join(operations)}" for name, operations in outcome.groups.items())
    return _to_line([row.framework, row.what, groups])


def _write_notes(row: Row, outcome: Outcome) -> str:
    said = [outcome.sentence] if outcome.sentence else []
    said += [f"healthy run: {one}" for one in (*outcome.accused, *outcome.held_up)]
    said += [f"differs: {one}" for one in outcome.differs]
    return f"- **{row.framework}, {row.what}**: {' · '.join(map(_escape, said))}\n" if said else ""


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


def _to_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
