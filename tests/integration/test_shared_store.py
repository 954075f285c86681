"""Several collectors keep runs and incidents in one database of a real PostgreSQL server, which may be away or stand
still.
"""

import itertools
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import psycopg
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.config import CollectorConfig
from rankscope.collector.incidents.incident import begin
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.incidents.kept_nodes import read_nodes
from rankscope.collector.incidents.store import IncidentStore, read_store
from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.steps.collective_totals import CollectiveCounts, unpack_counts
from rankscope.collector.storage import server
from rankscope.collector.storage.database import open_database
from rankscope.collector.storage.preflights import read_last_preflights, read_past, write_outcomes
from rankscope.collector.storage.run_reader import CurvePoint, opening_run
from rankscope.collector.storage.run_store import HistoryStore, KeptRun, Loaded
from rankscope.collector.storage.store_errors import DamagedStoreError
from rankscope.collector.storage.stored_runs import StoredRun, read_runs
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.collector.store_address import ServerAddress
from rankscope.measure.errors import UnavailableError
from rankscope.measure.preflights import NAMED, NOT_NAMED, NodeDevice, NodeOutcome, NodePast
from tests.integration.faults import wait_for_accounts
from tests.integration.light_ranks import crew_of, made_by, wait_for_acknowledgements
from tests.integration.postgres import PASSWORD, PostgresServer, running_postgres
from tests.integration.serving import find_fixed_port, serving, wait_for, wait_for_readiness
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.runs.kept_runs import WALL_S, S, interval_of, life_of, run_of, step_of

NUMBERS = itertools.count()
AWAY = "rankscope_store_writable 0"
WRITABLE = "rankscope_store_writable 1"
FIRST_OF_SECOND = server.INCIDENTS_OF_COLLECTOR + 1
STEPS_KEPT = {"RANKSCOPE_SERVE_CONSTANT_STEPS_KEPT": "4096"}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A running server."""
    with running_postgres() as postgres:
        yield postgres


@pytest.fixture
def database(postgres: PostgresServer) -> ServerAddress:
    """An empty database."""
    return postgres.create_database(f"fleet{next(NUMBERS)}")


def of(database: ServerAddress, collector: str) -> ServerAddress:
    """The database as a collector of this name has it."""
    return ServerAddress(database.url, collector)


def batch_of(run: str, steps: int, *, node: str = "node-a", longest_ns: int = S) -> WriteBatch:
    """A run, two ranks on a node, a story, and some history."""
    batch = WriteBatch()
    batch.put_run(run_of(run))
    batch.stories[run] = SavedStory(findings=(slow(),), former_boots=("boot-old",))
    for rank in range(2):
        batch.ranks[run, rank] = 0, life_of(run, rank, node=node)
    for step in range(steps):
        batch.add_step(run, step_of(step, longest_ns=longest_ns))
    batch.add_interval(run, interval_of())
    return batch


def write(address: ServerAddress, *batches: WriteBatch) -> None:
    with closing(open_database(address)) as opened, closing(HistoryStore(opened)) as store:
        for batch in batches:
            store.write(batch)


def execute(database: ServerAddress, statement: str) -> list[tuple[object, ...]]:
    """Do something in the database, as its operator would."""
    with psycopg.connect(database.url, autocommit=True) as session:
        cursor = session.execute(statement)
        return cursor.fetchall() if cursor.description else []


# -- what a file keeps, a server keeps --------------------------------------------------------------------------------


def test_next_collector_loads_runs_as_they_were_written(database: ServerAddress) -> None:
    batch = batch_of("a", 5)
    batch.collectives["a"] = CollectiveCounts().read()
    write(of(database, "west"), batch, batch)  # what failed is written again
    with closing(open_database(of(database, "west"))) as opened, closing(HistoryStore(opened)) as store:
        collectives = unpack_counts(CollectiveCounts().read().pack())
        kept = KeptRun(run_of("a"), batch.stories["a"], (life_of("a", 0), life_of("a", 1)), collectives)
        assert store.load() == Loaded((kept,), rows_unreadable=0)
        forgotten = WriteBatch()
        forgotten.forget("a")
        store.write(forgotten)
        assert store.load().runs == ()


def test_history_is_read_as_it_was_written(database: ServerAddress) -> None:
    write(of(database, "west"), batch_of("a", 5))
    with opening_run(database, "a") as history:
        assert list(history.read_steps()) == [step_of(step) for step in range(5)]
        assert history.read_last_steps(2, attempt=0, end_step=4) == [step_of(2), step_of(3)]
        assert history.find_last_attempt() == 0
        (interval,) = history.read_intervals()
        assert (interval.begin_wall_s, list(interval.columns["rank"])) == (WALL_S, [0, 1])
        assert list(history.read_sums(0.0, WALL_S + 1e6)) == []  # an interval without sums
        assert history.read_curve(2) == [
            CurvePoint(attempt=0, first_step=first, last_step=last, steps=last - first + 1, wall_s=WALL_S + last,
                       median_ns=S, longest_ns=S)
            for first, last in ((0, 2), (3, 4))
        ]  # fmt: skip


def test_oldest_history_is_deleted_first_and_frees_room(database: ServerAddress) -> None:
    with closing(open_database(of(database, "west"))) as opened, closing(HistoryStore(opened)) as store:
        store.write(batch_of("a", 50))
        before = store.bytes_used
        assert store.prune(WALL_S + 9.5, bytes_max=before)  # older than that are ten steps
        assert before - store.bytes_used == 10 * 150
        while store.prune(0.0, bytes_max=1_000):
            pass
    with opening_run(database, "a") as history:
        assert len(list(history.read_steps())) < 10


def test_preflights_are_those_of_all_collectors(database: ServerAddress) -> None:
    for wall_s, (collector, rate, status) in enumerate((("west", 4.0, NOT_NAMED), ("east", 5.0, NAMED))):
        with closing(open_database(of(database, collector))) as opened:
            outcome = NodeOutcome(node="n", device="cpu", status=status, rates={"memory": rate}, reasons=())
            for _ in range(2):
                write_outcomes(opened, collector, [outcome], float(wall_s))
    assert read_past(database, [NodeDevice("n", "cpu")]) == (NodePast("n", ({"memory": 4.0},)),)
    assert read_last_preflights(database)["n"].status == NAMED


# -- several collectors -----------------------------------------------------------------------------------------------


def test_runs_of_one_name_and_second_stay_two_runs_on_two_nodes(database: ServerAddress) -> None:
    for number, collector in enumerate(("west", "east")):
        run = f"bert@20270115T080000Z.{collector}"
        write(of(database, collector), batch_of(run, 5, node=f"node-{collector}"))
        with closing(IncidentStore(of(database, collector))) as store:
            first = store.load().last_id + 1
            assert first == (1, FIRST_OF_SECOND)[number]
            store.write([begin(first, run, slow(0), WALL_S)] if collector == "east" else [], [])
    assert {(one.run, one.collector) for one in read_runs(database).runs} == {("bert", "west"), ("bert", "east")}
    assert [(one.node, one.runs, one.runs_held_up) for one in read_nodes(database).nodes] == [
        ("node-east", 1, 1), ("node-west", 1, 0),
    ]  # fmt: skip
    assert [one.node for one in read_nodes(of(database, "west").only_own()).nodes] == ["node-west"]
    with opening_run(database, "bert") as history:  # of the same second the last by its id
        assert history.kept.run.run == "bert@20270115T080000Z.west"


def test_collector_sees_only_its_own_runs_and_incidents(database: ServerAddress) -> None:
    write(of(database, "west"), batch_of("a", 3))
    with closing(IncidentStore(of(database, "west"))) as west, closing(IncidentStore(of(database, "east"))) as east:
        west.write([begin(1, "a", slow(), WALL_S)], [])
        assert (len(west.load().incidents), east.load().incidents) == (1, ())
        with closing(HistoryStore(east.database)) as store:
            store.write(batch_of("a", 4))  # of the same id: to it a new run
            assert [len(kept.ranks) for kept in store.load().runs] == [2]
            while store.prune(2 * WALL_S, bytes_max=0):
                pass
    assert len(execute(database, "SELECT 1 FROM rankscope_west.steps")) == 3


def test_id_of_a_deleted_incident_is_not_given_again(database: ServerAddress) -> None:
    with closing(IncidentStore(of(database, "west"))) as store:
        store.write([begin(7, "a", slow(), WALL_S)], [])
        store.write([], [7])
    with closing(IncidentStore(of(database, "west"))) as store:
        assert store.load()[:2] == ((), 7)


def test_second_collector_of_a_name_is_refused_while_one_runs(database: ServerAddress) -> None:
    with closing(open_database(of(database, "west"))):
        with pytest.raises(UnavailableError, match=r"another collector writes to .* as 'west'; set a different"):
            open_database(of(database, "west"))
        open_database(of(database, "east")).close()
    open_database(of(database, "west")).close()


def test_collector_cut_off_writes_nothing_over_its_successor(database: ServerAddress) -> None:
    with closing(open_database(of(database, "west"))) as first, closing(HistoryStore(first)) as store:
        store.write(batch_of("a", 1))
        # Its session with the lock is lost, and the other, which writes, is not.
        execute(database, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        wait_for(
            lambda: True if not execute(database, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") else None,
            lambda: "the lock is still held",
        )
        successor = open_database(of(database, "west"))
        with closing(successor), pytest.raises(UnavailableError, match="another collector writes"):
            store.write(batch_of("a", 2))
        assert len(execute(database, "SELECT 1 FROM rankscope.steps")) == 1


def test_connection_lost_while_nothing_is_written_costs_nothing(database: ServerAddress) -> None:
    with closing(open_database(of(database, "west"))) as opened, closing(HistoryStore(opened)) as store:
        store.write(batch_of("a", 1))
        mine = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rankscope'"
        assert execute(database, mine)
        store.write(batch_of("a", 2))
        assert len(execute(database, "SELECT 1 FROM rankscope.steps")) == 2


# -- databases that cannot be used ------------------------------------------------------------------------------------


def test_dropped_tables_are_a_loss_and_made_again(database: ServerAddress) -> None:
    with closing(open_database(of(database, "west"))) as opened, closing(HistoryStore(opened)) as store:
        execute(database, "DROP SCHEMA rankscope_west CASCADE")
        with pytest.raises(DamagedStoreError) as raised:
            store.write(batch_of("a", 1))
        lost = opened.explain_damage(raised.value)
        assert (lost.reason, "were removed while the collector used them" in lost.text) == ("removed", True)
    write(of(database, "west"), batch_of("a", 1))
    execute(database, "DROP TABLE rankscope_west.steps")
    with pytest.raises(UnavailableError, match=r"the schema rankscope_west .* lacks steps; restore it from a backup"):
        open_database(of(database, "west"))


def test_database_of_a_later_release_or_other_program_is_refused(database: ServerAddress) -> None:
    with pytest.raises(UnavailableError, match="no collector has written to postgresql://127"):
        read_store(database)
    open_database(of(database, "west")).close()
    execute(database, "UPDATE rankscope.collectors SET version = 99 WHERE name = ''")
    for use in (read_store, open_database):
        with pytest.raises(UnavailableError, match=r"has version 99 .* upgrade"):
            use(database)
    execute(database, "DROP SCHEMA rankscope CASCADE; CREATE SCHEMA rankscope; CREATE TABLE rankscope.theirs (a INT)")
    with pytest.raises(UnavailableError, match="has a schema 'rankscope' of another program"):
        open_database(of(database, "west"))


def test_row_that_the_server_refuses_is_a_bug_and_no_loss(database: ServerAddress) -> None:
    with closing(open_database(of(database, "west"))) as opened, closing(HistoryStore(opened)) as store:
        with pytest.raises(UnavailableError, match=r"refuses a row: .* This is a bug of the collector"):
            store.write(batch_of("a\0b", 1))
        store.write(batch_of("b", 1))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://rankscope:SECRET@127.0.0.1:1/fleet",
        "postgresql://rankscope:SECRET@127.0.0.1:PORT/fleet?sslmode=nonsense",
        "postgresql://rankscope:SECRET@127.0.0.1:PORT/fleet?nonsense=SECRET",
        "postgresql://rankscope:SECRET@127.0.0.1:PORT/nowhere",
        "postgresql://nobody:SECRET@127.0.0.1:PORT/postgres",
        "postgresql://rankscope:%zzSECRET@127.0.0.1:PORT/postgres",
    ],
)
def test_no_error_repeats_the_password(postgres: PostgresServer, url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = url.replace("SECRET", "TopSecret").replace("PORT", str(postgres.port))
    journal = Journal(CollectorConfig(store=store, store_name="west"), 0.0, lambda _label: None)
    assert "cannot be used" in str(journal.problem)
    assert "TopSecret" not in caplog.text + str(journal.problem)
    journal.shut_down(1.0)


# -- collectors at work -----------------------------------------------------------------------------------------------


def settings(database: ServerAddress, collector: str) -> Mapping[str, str]:
    return {**STEPS_KEPT, "RANKSCOPE_SERVE_STORE": database.url, "RANKSCOPE_SERVE_STORE_NAME": collector}


def read_gaps(database: ServerAddress) -> Sequence[tuple[object, ...]]:
    """The steps of the only run before which others are missing; each 25th these ranks lose by themselves."""
    return execute(
        database,
        "SELECT step FROM (SELECT step, lag(step) OVER (ORDER BY step) AS before FROM rankscope.steps) AS placed "
        "WHERE step > before + 2 OR (step > before + 1 AND step % 25 <> 1)",
    )


def count_steps(database: ServerAddress) -> int:
    return int(str(execute(database, "SELECT count(*) FROM rankscope.steps")[0][0]))


def wait_for_steps(database: ServerAddress, count: int) -> None:
    wait_for(lambda: count_steps(database) >= count or None, lambda: f"{count_steps(database)} of {count} steps")


def test_server_that_crashes_amid_writing_costs_no_step(postgres: PostgresServer, database: ServerAddress) -> None:
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    with (
        serving(listen=address, environment=settings(database, "west")) as served,
        crew_of("bert", 2, address) as crew,
    ):
        wait_for(lambda: True if read_runs_or_none(database) else None, lambda: "no run is in the store")
        wait_for_steps(database, 20)
        postgres.stop(signal.SIGQUIT)
        try:
            served.wait_for_metrics(AWAY)
            said = (
                "ok, but nothing is written to the store, and all is kept in memory: the store postgresql://127.0.0.1"
            )
            wait_for_readiness(served, said)
            wait_for_acknowledgements(crew, 40)  # nobody waits for the store
            assert served.read("/healthz") == b"ok\n"
        finally:
            postgres.start()
        served.wait_for_metrics(WRITABLE)
        wait_for_steps(database, count_steps(database) + 60)
        assert read_gaps(database) == []
        shown = wait_for_accounts(served, "bert", made_by(crew))
        log = served.read_stderr()
        assert log.count("Until the store is writable again, runs and their history are kept in memory") == 1
        assert "the store is writable again" in log
        served.kill()
        with serving(listen=address, environment=settings(database, "west")) as again:
            kept = wait_for_accounts(again, "bert", {rank: account.made for rank, account in shown.items()})
            assert [rank for rank, one in kept.items() if one.published < shown[rank].published] == []
            wait_for_readiness(again, "ok\n")
            assert crew.stop()  # after it they would wait two minutes for a collector
        for secret in (PASSWORD, PASSWORD.replace("%2F", "/")):
            assert secret not in log + served.read_stderr()


def read_runs_or_none(database: ServerAddress) -> Sequence[StoredRun]:
    """The runs in the store; none while there is no table for them."""
    try:
        return read_runs(database).runs
    except UnavailableError:
        return ()


def test_server_that_stands_still_holds_up_nobody_and_is_said(
    postgres: PostgresServer, database: ServerAddress
) -> None:
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    with (
        serving(listen=address, environment=settings(database, "west")) as served,
        crew_of("bert", 2, address) as crew,
    ):
        served.wait_for_metrics(WRITABLE)
        wait_for(lambda: True if read_runs_or_none(database) else None, lambda: "no run is in the store")
        postgres.pause()
        try:
            served.wait_for_metrics(AWAY)
            assert "the store has not answered for 30 s" in wait_for_readiness(served, "ok, but nothing is written")
            wait_for_acknowledgements(crew, 40)
        finally:
            postgres.resume()
        served.wait_for_metrics(WRITABLE)
        wait_for_steps(database, count_steps(database) + 20)
        assert read_gaps(database) == []


def test_server_that_comes_later_gets_all_and_its_runs_go_on(postgres: PostgresServer, database: ServerAddress) -> None:
    """Also for a collector that is started while it is away."""
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    journal = Journal(CollectorConfig(store=database.url, store_name="old"), 0.0, lambda _label: None)
    journal.open("a", slow(), 1.0)
    journal.tick([], 1.0)
    journal.shut_down(2.0)
    assert len(read_store(database).incidents) == 1
    postgres.stop(signal.SIGINT)
    try:
        quick = {**settings(database, "west"), "RANKSCOPE_SERVE_CONSTANT_TICK_S": "0.2"}
        with serving(listen=address, environment=quick) as served, crew_of("bert", 2, address) as crew:
            served.wait_for_metrics(AWAY)
            wait_for_acknowledgements(crew, 10)
            postgres.start()
            served.wait_for_metrics(WRITABLE)
            wait_for_steps(database, 10)
    finally:
        if postgres.is_stopped:
            postgres.start()


def test_commands_show_the_runs_of_all_collectors(database: ServerAddress, capsys: pytest.CaptureFixture[str]) -> None:
    addresses = [f"tcp://127.0.0.1:{find_fixed_port()}" for _ in range(2)]
    for address, collector in zip(addresses, ("west", "east"), strict=True):
        with serving(listen=address, environment=settings(database, collector)), crew_of("bert", 2, address):
            wait_for_run_of(database, collector)
            wait_for_steps(database, count_steps(database) + 150)
    ids = [one.run_id for one in read_runs(database).runs]
    assert sorted(run_id.partition("Z")[2] for run_id in ids) == [".east", ".west"]
    assert main(["status", "--store", database.url]) == 0
    shown = capsys.readouterr().out
    assert all(run_id in shown for run_id in ids)
    assert "2 runs of 2 collectors" in shown
    assert main(["status", "--store", database.url, "bert", "--json"]) == 0
    assert {one["collector"] for one in json.loads(capsys.readouterr().out)} == {"west", "east"}
    assert main(["nodes", "--store", database.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    assert main(["compare", *sorted(ids), "--store", database.url, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert {compared["a"]["run_id"], compared["b"]["run_id"]} == set(ids)
    assert main(["report", "bert", "--store", database.url, "--json"]) == 0
    assert main(["incidents", "--store", database.url]) == 0
    assert main(["status", "--store", "postgresql://me:TopSecret@127.0.0.1:1/x"]) == 1
    with pytest.raises(SystemExit):
        main(["status", "--store", "postgresql://me:Top/Secret@127.0.0.1:1/x"])
    said = capsys.readouterr().err
    assert ("Secret" not in said, "percent-encoded" in said) == (True, True)


def wait_for_run_of(database: ServerAddress, collector: str) -> None:
    wait_for(
        lambda: any(one.collector == collector for one in read_runs_or_none(database)) or None,
        lambda: f"no run of {collector} is in the store",
    )
