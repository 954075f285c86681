"""Write every table of a trace report as a file of its own: CSV, or Parquet where pyarrow is installed."""

import csv
import json
from pathlib import Path
from typing import Any

from rankscope.collector.traces.column_table import ColumnTable
from rankscope.collector.traces.data_frames import Table, build_tables
from rankscope.collector.traces.report import TraceReport
from rankscope.measure.errors import SettingError, UnavailableError

FORMATS = ("csv", "parquet")


def choose_format(text: str) -> str:
    """Return the format of the files. Raises SettingError for another, UnavailableError without pyarrow."""
    if text not in FORMATS:
        raise SettingError(f"--tables-as is {text!r}; it is csv or parquet")
    if text == "parquet":
        _import_pyarrow()
    return text


def write_tables(report: TraceReport, folder: Path, kind: str) -> list[Path]:
    """Write the tables that have rows into this folder, NAME.csv or NAME.parquet, and return the files. Lists and
    mappings in a row are JSON. Raises UnavailableError where that cannot be done.
    """
    write = _write_csv if kind == "csv" else _write_parquet
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in build_tables(report).items():
            if rows:
                path = folder / f"{name}.{kind}"
                write(path, rows)
                written.append(path)
    except OSError as error:
        problem = f"{folder} (from --tables) cannot be written: {error.strerror}. Name another folder."
        raise UnavailableError(problem) from error
    return written


def _flatten(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _columns_of(rows: Table) -> list[str]:
    return list(rows.columns if isinstance(rows, ColumnTable) else dict.fromkeys(name for row in rows for name in row))


def _read(rows: Table, name: str) -> list[Any]:
    return rows.read(name) if isinstance(rows, ColumnTable) else [_flatten(row.get(name)) for row in rows]


def _write_csv(path: Path, rows: Table) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _columns_of(rows))
        writer.writeheader()
        writer.writerows({name: _flatten(value) for name, value in row.items()} for row in rows)


def _write_parquet(path: Path, rows: Table) -> None:
    pa, parquet = _import_pyarrow()
    parquet.write_table(pa.table({name: pa.array(_read(rows, name)) for name in _columns_of(rows)}), path)


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - only who wants Parquet needs it
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise UnavailableError("Parquet needs pyarrow: pip install 'rankscope[parquet]'") from None
    return pa, parquet
