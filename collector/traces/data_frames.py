"""Turn a trace report into tables of plain rows, one dictionary each, as pandas and others take them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rankscope.collector.traces.column_table import ColumnTable, join_tables

if TYPE_CHECKING:
    from rankscope.collector.traces.report import RankReport, TraceReport

Rows = list[dict[str, Any]]
Table = Rows | ColumnTable[dict[str, Any]]

ASKED_OF_RANKS = (
    "cpu_use",
    "operator_shapes",
    "operator_arguments",
    "operator_groups",
    "range_kernels",
    "kernel_launches",
    "roofline",
    "modules",
    "kernel_groups",
    "kernel_sequences",
    "flops",
    "memory_stretch",
    "memory_stretch_operators",
    "allocations",
    "events",
)
"""Tables of a rank that are None where they were not asked for."""
COLUMNS = ("allocations", "events")
"""Tables of a rank that may have millions of rows, held as columns."""


def build_tables(report: "TraceReport") -> dict[str, Table]:
    """Return the rows of every table by name. What is a list in the report is a table of its name; those of ranks have
    the rank in each row. `ranks` has the figures of whole traces, `signs` the input of the advice, `warnings` a line
    each; `findings`, `standings`, `waits`, `matched_collectives` and `pipeline_stages` are of the comparison of ranks,
    `difference_...` of that with other traces; `critical_...`, `all_to_all_...` and `flops...` are there if they
    were asked for.
    """
    tables: dict[str, Rows] = {"ranks": []}
    for rank in report.ranks:
        _add_rank(tables, rank)
    columns = {name: join_tables(found) for name in COLUMNS if (found := _find_columns(report, name))}
    of_all = {name: getattr(report, name) for name in report.__struct_fields__ if name != "ranks"}
    tables |= {name: _to_rows(value) for name, value in of_all.items() if isinstance(value, list)}
    across = report.cross_rank
    if across is not None:
        tables["waits"] = _to_rows(across.waits)
        stages = across.pipeline.stages if across.pipeline is not None else ()
        tables["findings"], tables["standings"] = _to_rows(across.findings), _to_rows(across.standings)
        tables["matched_collectives"], tables["pipeline_stages"] = _to_rows(across.collectives), _to_rows(stages)
    for table in report.comparison.tables if report.comparison is not None else ():
        tables[f"difference_{table.key}"] = _to_rows(table.rows)
    if report.comparison is not None and report.comparison.calls is not None:
        tables["difference_calls"] = _to_rows(report.comparison.calls.rows)
    if report.critical_path is not None:
        tables["critical_steps"] = _to_rows(report.critical_path.steps)
        tables["critical_parts"] = _to_rows(report.critical_path.parts)
        if report.critical_path.shortened is not None:
            tables["shortened_steps"] = _to_rows(report.critical_path.shortened.steps)
            tables["shortened_parts"] = _to_rows(report.critical_path.shortened.parts)
    if report.all_to_all is not None:
        tables["all_to_all_ranks"] = _to_rows(report.all_to_all.ranks)
        tables["all_to_all_calls"] = _to_rows(report.all_to_all.calls)
    return {**tables, **columns}


def _find_columns(report: "TraceReport", name: str) -> list[tuple[int | None, ColumnTable[Any]]]:
    """Return the tables of this name that ranks have as columns, with the rank."""
    found = ((rank.rank, getattr(rank, name)) for rank in report.ranks)
    return [(rank, table) for rank, table in found if table is not None]


def _add_rank(tables: dict[str, Rows], rank: "RankReport") -> None:
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(rank, **dict.fromkeys(COLUMNS)))
    key = {"rank": rank.rank}
    for name, rows in _find_tables(fields).items():
        tables.setdefault(name, []).extend({**key, **row} for row in rows)
    if fields["flops"] is not None:
        _add_profile(tables, key, fields["flops"])
    tables.setdefault("signs", []).append({**key, **(fields["signs"] or {})})
    tables.setdefault("warnings", []).extend({**key, "warning": warning} for warning in rank.warnings)
    figures = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    tables["ranks"].append({name: value for name, value in figures.items() if name not in ASKED_OF_RANKS})


def _add_profile(tables: dict[str, Rows], key: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    figures = {name: value for name, value in fields.items() if not isinstance(value, list)}
    tables.setdefault("flops", []).append({**key, **figures})
    for name in ("by_dtype", "operators", "modules", "uncounted"):
        tables.setdefault(f"flops_{name}", []).extend({**key, **row} for row in fields[name])


def _find_tables(fields: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the lists of dictionaries among these fields, also the empty ones that can be nothing else."""
    return {
        name: value
        for name, value in fields.items()
        if isinstance(value, list) and all(isinstance(row, dict) for row in value)
    }


def _to_rows(found: Iterable[msgspec.Struct]) -> Rows:
    return [msgspec.to_builtins(one) for one in found]
