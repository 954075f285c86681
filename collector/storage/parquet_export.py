"""Export the history of a run as Parquet files, for pandas, DuckDB, Spark: `rankscope report RUN --parquet FOLDER`.

    FOLDER/steps.parquet   a row a step: attempt, step, wall_s, ranks, median_ns, longest_ns, slowest_rank, and a column
                           `phase_NAME_ns` for each phase that any step of the run has
    FOLDER/ranks.parquet   a row a rank and interval: attempt, begin_wall_s, end_wall_s, rank, steps, and the means and
                           medians of `rank_intervals.COLUMNS`

FOLDER is a path or a URL that fsspec supports (`s3://bucket/history`). Needs `pip install 'rankscope[parquet]'`.
Unknown values are null, and both files name the run in their metadata, as `rankscope.run`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import numpy as np

from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.rank_intervals import COLUMNS, RankInterval
from rankscope.collector.storage.run_reader import StoredHistory
from rankscope.measure.errors import UnavailableError

ROWS_PER_GROUP: Final = 50_000
"""Rows that are in memory at a time, about 10 MB."""
WHOLE: Final = frozenset({"rank", "steps"})
"""Columns of an interval with whole numbers."""


def write_parquet(history: StoredHistory, folder: str) -> tuple[str, str]:
    """Write both files, replacing older ones, and return their names. Raises UnavailableError, with the cure."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional extra
        from fsspec.core import url_to_fs  # noqa: PLC0415 - as above
    except ImportError as error:
        raise UnavailableError(f"{error}; `pip install 'rankscope[parquet]'` installs what Parquet needs.") from error
    steps, ranks = f"{folder.rstrip('/')}/steps.parquet", f"{folder.rstrip('/')}/ranks.parquet"
    try:
        files, place = url_to_fs(folder)
        files.makedirs(place, exist_ok=True)
        _write_steps(pa, files, f"{place}/steps.parquet", history)
        _write_ranks(pa, files, f"{place}/ranks.parquet", history)
    except Exception as error:  # each driver has exceptions of its own kind
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UnavailableError(
            f"the Parquet files cannot be written to {folder}: {reason}. Name a writable folder, or a URL "
            "that fsspec supports, with its credentials in the environment."
        ) from error
    return steps, ranks


def _write_steps(pa: Any, files: Any, place: str, history: StoredHistory) -> None:
    phases = sorted({name for step in history.read_steps() for name in step.phases_ns})
    whole = ("attempt", "step", "ranks", "median_ns", "longest_ns", "slowest_rank")
    fields = [(name, pa.int64()) for name in whole] + [("wall_s", pa.float64())]
    schema = pa.schema(fields + [(f"phase_{name}_ns", pa.int64()) for name in phases])
    steps = history.read_steps()
    with _writing(files, place, schema, history) as writer:
        while rows := list(islice(steps, ROWS_PER_GROUP)):
            columns = {name: [getattr(row, name) for row in rows] for name in (*whole, "wall_s")}
            columns.update({f"phase_{name}_ns": _phase(rows, name) for name in phases})
            writer.write_table(pa.table(columns, schema=writer.schema))


def _phase(rows: list[StepAggregate], name: str) -> list[int | None]:
    return [row.phases_ns.get(name) for row in rows]


def _write_ranks(pa: Any, files: Any, place: str, history: StoredHistory) -> None:
    fields = [("attempt", pa.int64()), ("begin_wall_s", pa.float64()), ("end_wall_s", pa.float64())]
    schema = pa.schema(fields + [(name, pa.int64() if name in WHOLE else pa.float32()) for name in COLUMNS])
    with _writing(files, place, schema, history) as writer:
        tables: list[Any] = []
        for interval in history.read_intervals():
            tables.append(pa.table(_to_columns(pa, interval), schema=writer.schema))
            if sum(table.num_rows for table in tables) >= ROWS_PER_GROUP:
                writer.write_table(pa.concat_tables(tables))
                tables = []
        if tables:
            writer.write_table(pa.concat_tables(tables))


def _to_columns(pa: Any, interval: RankInterval) -> dict[str, Any]:
    count = len(interval.columns["rank"])
    columns: dict[str, Any] = {
        "attempt": np.full(count, interval.attempt),
        "begin_wall_s": np.full(count, interval.begin_wall_s),
        "end_wall_s": np.full(count, interval.end_wall_s),
    }
    for name, values in interval.columns.items():
        columns[name] = values.astype(np.int64) if name in WHOLE else pa.array(values, from_pandas=True)
    return columns


@contextmanager
def _writing(files: Any, place: str, schema: Any, history: StoredHistory) -> Iterator[Any]:
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - an extra

    named = schema.with_metadata({"rankscope.run": history.kept.run.run})
    with files.open(place, "wb") as sink, ParquetWriter(sink, named) as writer:
        yield writer
