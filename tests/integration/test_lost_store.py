"""The store's files are removed, truncated, overwritten or replaced while a collector has them open.

Each time the collector says so and goes on with a file that has all it knows, so that after a kill no counter that was
shown goes back. Nothing that was on the disk is deleted.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankscope.collector.storage.database import Database
from tests.integration.faults import sized, wait_for_accounts
from tests.integration.light_ranks import Crew, crew_of, made_by, wait_for_acknowledgements
from tests.integration.serving import Served, find_fixed_port, serving, wait_for, wait_for_readiness

RANKS = 2
RUN = "lost-store"
STEPS_KEPT = {"RANKSCOPE_SERVE_CONSTANT_STEPS_KEPT": "4096"}
"""These ranks do not wait for each other: on a busy machine one is hundreds of steps ahead, and what the other sends
again would come too late to be compared, and be counted as late instead of published."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "runs" / "store.db"


@contextlib.contextmanager
def writing(store: Path) -> Iterator[tuple[Served, Crew]]:
    """A collector whose store has a live run."""
    store.parent.mkdir(exist_ok=True)
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    with (
        serving("--store", str(store), listen=address, environment=STEPS_KEPT) as served,
        crew_of(RUN, RANKS, address) as crew,
    ):
        wait_for_accounts(served, RUN, made_by(crew))
        wait_for(lambda: read_stored(store) or None, lambda: "nothing is in the store")
        yield served, crew


def read_stored(store: Path) -> list[str]:
    """The runs in the store."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return [run for (run,) in connection.execute("SELECT run FROM runs")]


def remove(store: Path) -> None:
    store.unlink()


def remove_all(store: Path) -> None:
    for path in store.parent.iterdir():
        path.unlink()


def remove_log(store: Path) -> None:
    Path(f"{store}-wal").unlink()


def remove_lock(store: Path) -> None:
    Path(f"{store}-lock").unlink()


def truncate(store: Path) -> None:
    with store.open("r+b") as file:
        file.truncate(100)


def empty(store: Path) -> None:
    store.write_bytes(b"")


def overwrite(store: Path) -> None:
    size = store.stat().st_size
    with store.open("r+b") as file:
        file.write(b"no database " * (size // 12 + 1))


def replace(store: Path) -> None:
    """With the store of another collector."""
    with contextlib.closing(Database(store.parent / "other.db")):
        pass
    (store.parent / "other.db").rename(store)


HARMS = (
    (remove, "removed", "{store} was removed while the collector had it open as its store."),
    (truncate, "truncated", "{store} was truncated, from "),
    (overwrite, "damaged", "{store} was overwritten or is damaged (its first bytes are not those of an SQLite "),
    (replace, "replaced", "{store} was replaced by another file while the collector had it open as its store."),
    # Other files for the same reasons; tests/unit/collector/storage/test_file_watch.py has them in `make test`.
    (remove_all, "removed", "{store} was removed while the collector had it open as its store."),
    (remove_log, "removed", "{store}-wal was removed while the collector had it open as its store."),
    (remove_lock, "removed", "{store}-lock was removed while the collector had it open as its store."),
    (empty, "truncated", "{store} was truncated, from "),
)


@pytest.mark.parametrize(
    ("harm", "reason", "said"),
    HARMS[: sized(4, len(HARMS))],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_lost_store_is_told_and_begun_anew_with_no_counter_lower(
    store: Path, harm: Callable[[Path], None], reason: str, said: str
) -> None:
    with writing(store) as (served, crew):
        harm(store)
        wait_for_readiness(served, f"ok, but {said.format(store=store)}")
        wait_for(lambda: is_counted(served, reason), served.read_metrics)
        wait_for(lambda: read_stored(store) or None, lambda: "nothing is in the new store")
        wait_for_acknowledgements(crew, 60)
        shown = wait_for_accounts(served, RUN, made_by(crew))  # the page has what the store has
        assert said.format(store=store) in served.read_stderr()
        address = served.endpoint
        served.kill()
        with serving("--store", str(store), listen=address, environment=STEPS_KEPT) as again:
            kept = wait_for_accounts(again, RUN, {rank: account.made for rank, account in shown.items()})
            # What was acknowledged in the last moment may not have been stored. A collector that does not know the
            # run counts everything before as published elsewhere, and that is at least what was shown.
            unknown = [rank for rank, account in kept.items() if account.elsewhere >= shown[rank].published]
            behind = [rank for rank, account in kept.items() if account.published < shown[rank].published]
            assert (unknown, behind) == ([], [])
            wait_for_readiness(again, "ok\n")
            assert crew.stop()


def is_counted(served: Served, reason: str) -> bool | None:
    """Whether the page of metrics counts one loss, and says that the store is written to."""
    page = served.read_metrics()
    counted = f'rankscope_store_lost_total{{reason="{reason}"}} 1.0\n' in page
    return True if counted and "rankscope_store_writable 1.0\n" in page else None


def test_file_put_in_place_of_the_store_is_renamed_not_deleted(store: Path) -> None:
    with writing(store) as (served, crew):
        replace(store)
        content = store.read_bytes()
        said = wait_for_readiness(served, "that file was renamed to ")
        (aside,) = store.parent.glob("store.db.replaced-*Z")
        assert f"renamed to {aside}, and a new one was created; all incidents and runs in memory are written to" in said
        assert aside.read_bytes() == content
        assert crew.stop()
