"""Write every table of a trace report as a file of its own: CSV, or Parquet where pyarrow is installed."""

import csv
import json
from pathlib import Path
from typing import Any

from rankscope.collector.traces.data_frames import Rows, build_tables
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
                write(path, [_flatten(row) for row in rows])
                written.append(path)
    except OSError as error:
        problem = f"{folder} (from --tables) cannot be written: {error.strerror}. Name another folder."
        raise UnavailableError(problem) from error
    return written


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}


def _columns_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _columns_of(rows))
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, rows: Rows) -> None:
    pa, parquet = _import_pyarrow()
    columns = {name: [row.get(name) for row in rows] for name in _columns_of(rows)}
    parquet.write_table(pa.table(columns), path)


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - only who wants Parquet needs it
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise UnavailableError("Parquet needs pyarrow: pip install 'rankscope[parquet]'") from None
    return pa, parquet
