"""Read the history of a run from the store, whether or not a collector writes to it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.collector.run_ids import NEAR_AMONG_MAX, choose_run_id, describe_unknown_run, read_run_name
from rankscope.collector.runs.former_attempts import NO_ATTEMPTS, FormerAttempt, FormerAttempts, PlacedRank
from rankscope.collector.steps.collective_totals import SavedCounts, unpack_counts
from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.database import Connection, reading
from rankscope.collector.storage.rank_intervals import Column, IntervalSums, RankInterval, unpack, unpack_sums
from rankscope.collector.storage.run_store import KeptRun, load_run
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import UnavailableError
from rankscope.measure.messages import Hello
from rankscope.measure.records import DeviceSample
from rankscope.measure.units import ns_to_s

ALL_ROWS: Final = 2**62
"""A limit of rows that is none."""
PLACED_RANKS_MAX: Final = 65_536
"""Ranks of all runs and attempts that `read_placed_ranks` reads: four of the largest supported runs."""


class PlacedRanks(NamedTuple):
    """By run id the ranks of each attempt by their number, the latest attempt first. `runs_left_out` had too many ranks
    beside those of later runs.
    """

    runs: dict[str, tuple[Mapping[int, PlacedRank], ...]]
    runs_left_out: int


class _RankPlace(msgspec.Struct, frozen=True):
    """The part of a SavedRank that says where it ran."""

    hello: Hello
    devices: tuple[DeviceSample, ...] = ()


class _Places(msgspec.Struct, frozen=True):
    """The part of a SavedStory that says where earlier attempts ran."""

    former_attempts: FormerAttempts = NO_ATTEMPTS


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A range of steps, of which `steps` are in the history. `median_ns` is the mean of their medians over the ranks,
    `longest_ns` the longest duration of any rank, `wall_s` when the last of them was complete.
    """

    attempt: int
    first_step: int
    last_step: int
    steps: int
    wall_s: float
    median_ns: float
    longest_ns: int


class StoredHistory:
    """One run in an open file, made by `opening_run`."""

    def __init__(self, connection: Connection, run_id: int, kept: KeptRun) -> None:
        self._connection = connection
        self._run_id = run_id
        self.kept = kept
        """The run as it was last saved, with its findings and the ranks of its last attempt."""

    def read_curve(self, points_max: int, since_wall_s: float = 0.0) -> list[CurvePoint]:
        """Return the steps that were complete at `since_wall_s` or later, in order, as at most `points_max` points
        and one more for each restart: neighboring steps are merged where there are more.
        """
        wanted = (self._run_id, since_wall_s)
        (count,) = self._connection.execute(
            "SELECT count(*) FROM steps WHERE run_id = ? AND wall_s >= ?", wanted
        ).fetchone()
        rows = self._connection.execute(
            "SELECT attempt, min(step), max(step), count(*), max(wall_s), "
            "CAST(avg(median_ns) AS DOUBLE PRECISION), max(longest_ns) FROM "
            "(SELECT *, row_number() OVER (ORDER BY attempt, step) - 1 AS place FROM steps WHERE run_id = ? "
            "AND wall_s >= ?) AS placed GROUP BY attempt, place / ? ORDER BY attempt, min(step)",
            (*wanted, max(1, -(-count // max(1, points_max)))),
        )
        names = CurvePoint.__struct_fields__
        return [CurvePoint(**dict(zip(names, row, strict=True))) for row in rows]

    def read_steps(self) -> Iterator[StepAggregate]:
        """Iterate over all steps in order."""
        rows = self._connection.execute(
            f"SELECT {', '.join(StepAggregate.__struct_fields__)} FROM steps "  # noqa: S608 - constant
            "WHERE run_id = ? ORDER BY attempt, step",
            (self._run_id,),
        )
        yield from map(_build_step, rows)

    def read_last_steps(
        self, count_max: int, *, attempt: int | None = None, first_step: int = 0, end_step: int | None = None
    ) -> list[StepAggregate]:
        """Return the last `count_max` steps in order: of all attempts or of one, from `first_step` up to and without
        `end_step`.
        """
        rows = self._connection.execute(
            f"SELECT {', '.join(StepAggregate.__struct_fields__)} FROM steps WHERE run_id = ? "  # noqa: S608 - constant
            "AND (? IS NULL OR attempt = ?) AND step >= ? AND (? IS NULL OR step < ?) "
            "ORDER BY attempt DESC, step DESC LIMIT ?",
            (self._run_id, attempt, attempt, first_step, end_step, end_step, count_max),
        ).fetchall()
        return [_build_step(row) for row in reversed(rows)]

    def read_collectives(self) -> SavedCounts | None:
        """Return the sums of the collectives of the last attempt; None where there are none, or they are unreadable."""
        row = self._connection.execute("SELECT body FROM collectives WHERE run_id = ?", (self._run_id,)).fetchone()
        try:
            return None if row is None else unpack_counts(row[0])
        except (ValueError, TypeError):
            return None

    def find_last_attempt(self) -> int | None:
        """Return the number of the last attempt with steps in the history; None without any."""
        (found,) = self._connection.execute(
            "SELECT max(attempt) FROM steps WHERE run_id = ?", (self._run_id,)
        ).fetchone()
        return None if found is None else int(found)

    def read_sums(self, begin_wall_s: float, end_wall_s: float) -> Iterator[IntervalSums]:
        """Iterate over the sums of the intervals that lie between these times, oldest first; rows that are unreadable
        or without sums are skipped.
        """
        rows = self._connection.execute(
            "SELECT attempt, begin_wall_s, end_wall_s, body FROM rank_intervals WHERE run_id = ? "
            "AND begin_wall_s >= ? AND end_wall_s <= ? ORDER BY end_wall_s",
            (self._run_id, begin_wall_s, end_wall_s),
        )
        for attempt, begin_s, end_s, body in rows:
            sums = _try_unpack_sums(body)
            if sums:
                yield IntervalSums(attempt, begin_s, end_s, sums)

    def read_intervals(self, last: int | None = None) -> Iterator[RankInterval]:
        """Iterate over the intervals of its ranks, oldest first; over the `last` ones only when that is given.
        Unreadable ones are skipped.
        """
        rows = self._connection.execute(
            "SELECT * FROM (SELECT attempt, begin_wall_s, end_wall_s, body FROM rank_intervals WHERE run_id = ? "
            "ORDER BY end_wall_s DESC LIMIT ?) AS latest ORDER BY end_wall_s",
            (self._run_id, ALL_ROWS if last is None else last),
        )
        for attempt, begin_wall_s, end_wall_s, body in rows:
            columns = _try_unpack(body)
            if columns is not None:
                yield RankInterval(attempt, begin_wall_s, end_wall_s, columns)


def read_earlier_runs(address: StoreAddress, run_id: str, count_max: int) -> list[str]:
    """Return the ids of the runs of the same name that began before this one, the latest first, at most `count_max`.
    Raises UnavailableError when the file cannot be used.
    """
    name = read_run_name(run_id)
    with reading(address) as connection:
        rows = connection.execute("SELECT run FROM runs WHERE run >= ? AND run < ? ORDER BY run DESC", (name, run_id))
        return [run for (run,) in rows if read_run_name(run) == name][:count_max]


@contextmanager
def opening_run(address: StoreAddress, run: str) -> Iterator[StoredHistory]:
    """Open the history of the run with this id, or of the latest with this name. Raises UnavailableError when there is
    none, or the file cannot be used.
    """
    with reading(address) as connection:
        if not connection.has_table("runs"):
            raise UnavailableError(f"{address} holds no history yet; a collector of this release writes one into it.")
        # The ids of a name follow it in order, as NAME@TIME; choose_run_id drops other texts that begin with it.
        like = connection.execute(
            "SELECT run FROM runs WHERE run = ? OR (run > ? AND run < ?)", (run, f"{run}@", f"{run}A")
        )
        run_id = choose_run_id(run, (one for (one,) in like))
        row = connection.execute("SELECT id, body, story FROM runs WHERE run = ?", (run_id,)).fetchone()
        if row is None:
            known = connection.execute("SELECT run FROM runs ORDER BY changed_wall_s DESC LIMIT ?", (NEAR_AMONG_MAX,))
            raise UnavailableError(describe_unknown_run(run, (one for (one,) in known), str(address)))
        unreadable: list[str] = []
        kept = load_run(connection, row, unreadable)
        if kept is None:
            raise UnavailableError(
                f"run {run!r} in {address} cannot be read: {unreadable[0]}. Use the release that wrote it."
            )
        yield StoredHistory(connection, row[0], kept)


def read_placed_ranks(address: StoreAddress, ranks_max: int = PLACED_RANKS_MAX) -> PlacedRanks:
    """Return the ranks of all kept attempts of each run in the store, from the run that has changed last on until there
    would be more than `ranks_max`. Unreadable ranks are skipped. Raises UnavailableError when the file cannot be used.
    """
    with reading(address) as connection:
        if not connection.has_table("runs"):
            return PlacedRanks({}, 0)
        runs = connection.execute(
            "SELECT id, run, (SELECT count(*) FROM lives WHERE run_id = id) FROM runs ORDER BY changed_wall_s DESC"
        ).fetchall()
        found: dict[str, tuple[Mapping[int, PlacedRank], ...]] = {}
        for run_id, run, count in runs:
            former = _read_former(connection, run_id)
            ranks_max -= count + sum(attempt.ranks for attempt in former)
            if ranks_max < 0:
                break
            found[run] = (dict(_read_places(connection, run_id)), *map(_place, former))
        return PlacedRanks(found, len(runs) - len(found))


def _read_former(connection: Connection, run_id: int) -> tuple[FormerAttempt, ...]:
    """Return the earlier attempts of a run, the latest first; none where they cannot be read."""
    (story,) = connection.execute("SELECT story FROM runs WHERE id = ?", (run_id,)).fetchone()
    try:
        return msgspec.json.decode(story, type=_Places).former_attempts.kept[::-1]
    except (msgspec.DecodeError, TypeError):
        return ()


def _place(attempt: FormerAttempt) -> dict[int, PlacedRank]:
    placed = attempt.ranks_by_node.items()
    return {rank: PlacedRank(node, attempt.begun_wall_s, ()) for node, ranks in placed for rank in ranks}


def _read_places(connection: Connection, run_id: int) -> Iterator[tuple[int, PlacedRank]]:
    rows = connection.execute(
        "SELECT rank, body FROM lives WHERE run_id = ? AND attempt = (SELECT max(attempt) FROM lives WHERE run_id = ?)",
        (run_id, run_id),
    )
    decoder = msgspec.json.Decoder(_RankPlace)
    for rank, body in rows:
        try:
            place = decoder.decode(body)
        except (msgspec.DecodeError, TypeError):
            continue
        uuids = tuple(device.uuid for device in place.devices)
        yield rank, PlacedRank(place.hello.identity.node, ns_to_s(place.hello.wall_ns), uuids)


def _build_step(row: Sequence[Any]) -> StepAggregate:
    *values, phases_ns = row
    named = dict(zip(StepAggregate.__struct_fields__[:-1], values, strict=True))
    return StepAggregate(**named, phases_ns=_decode_phases(phases_ns))


def _decode_phases(body: str) -> Mapping[str, int]:
    try:
        return msgspec.json.decode(body, type=dict[str, int])
    except msgspec.DecodeError:
        return {}


def _try_unpack_sums(body: bytes) -> dict[str, int]:
    try:
        return unpack_sums(body)
    except ValueError:
        return {}


def _try_unpack(body: bytes) -> dict[str, Column] | None:
    try:
        return unpack(body)
    except ValueError:
        return None
