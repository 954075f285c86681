"""The collector is killed, stopped, read too slowly or left without file descriptors: whatever is lost is counted.

Each test ends with the account of every rank's steps as the page of metrics has it, and it adds up.
"""

import json
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack

import psutil

from rankscope.collector.incidents.ledger import OF_ENDS
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.units import NS_PER_S
from tests.integration.fault_figures import Fault
from tests.integration.faults import check_identity, sized, wait_for_accounts
from tests.integration.light_ranks import (
    STEPS_PER_REPORT,
    Crew,
    LightRank,
    crew_of,
    light_identity,
    made_by,
    wait_for_acknowledgements,
    wait_for_reports,
)
from tests.integration.serving import find_fixed_port, have_ended, read_url, serving

RANKS = 4
RUN = "faults"


def ended_in(restart_count: int) -> Callable[[RunSnapshot], bool]:
    """Whether all ranks of that attempt have ended."""
    return lambda run: run.restart_count == restart_count and have_ended(run)


def test_killed_collector_comes_back_lacking_nothing() -> None:
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    kills = sized(2, 20)
    fault = Fault(
        f"SIGKILL of the collector, {kills} times, no store",
        "the next one has the ranks say Hello, and takes up where the one before had acknowledged",
    )
    with crew_of(RUN, RANKS, address) as crew:
        for _ in range(kills):
            with serving(listen=address) as served:
                wait_for_accounts(served, RUN, made_by(crew))
                wait_for_acknowledgements(crew, 1)
                served.kill()
            wait_for_reports(crew, 3)
        with serving(listen=address) as served:
            fault.is_over()
            wait_for_accounts(served, RUN, made_by(crew))
            fault.is_delivered()
            wait_for_acknowledgements(crew, 10)
            assert crew.stop()
            accounts = wait_for_accounts(served, RUN, made_by(crew))
            fault.settle(served, accounts)
            overwritten = {rank.identity.rank: rank.overwritten for rank in crew.ranks}
            # A rank that is back seconds after the others may have its backlog late: that is counted too.
            assert {rank: account.overwritten for rank, account in accounts.items()} == overwritten
            assert [account.dropped for account in accounts.values()] == [0] * RANKS
            assert [account.gaps for account in accounts.values()] == [0] * RANKS
            assert all(account.elsewhere > 0 for account in accounts.values())


def test_full_buffer_drops_oldest_reports_and_counts_their_steps() -> None:
    """16 reports fit, so of the 60 and more that are made while no collector is there at least 44 are gone."""
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    fault = Fault(
        "no collector, and room for 16 reports of the 60 that are made",
        "the oldest reports go first; the page tells how many steps were in them",
    )
    with crew_of(RUN, RANKS, address, reports_max=16) as crew:
        with serving(listen=address) as served:
            wait_for_accounts(served, RUN, made_by(crew))
            served.kill()
        wait_for_reports(crew, 60)
        with serving(listen=address) as served:
            fault.is_over()
            wait_for_accounts(served, RUN, made_by(crew))
            fault.is_delivered()
            assert crew.stop()
            accounts = wait_for_accounts(served, RUN, made_by(crew))
            fault.settle(served, accounts)
            for rank in crew.ranks:
                # The agent also counts what arrived while its acknowledgement was still on the way.
                dropped = accounts[rank.identity.rank].dropped
                assert 44 * STEPS_PER_REPORT <= dropped <= rank.buffer.steps_dropped


def test_collector_stopped_for_a_while_catches_up_without_loss() -> None:
    with serving() as served, crew_of(RUN, RANKS, served.endpoint, fills_time=True) as crew:
        wait_for_accounts(served, RUN, made_by(crew))
        fault = Fault(
            f"SIGSTOP of the collector for {sized(2, 30)} s",
            "the ranks keep their reports, ask with growing pauses, and send the rest when it answers",
        )
        served.send(signal.SIGSTOP)
        wait_for_reports(crew, sized(80, 1200))  # at 40 a second: 2 s, and 30 s
        served.send(signal.SIGCONT)
        fault.is_over()
        wait_for_accounts(served, RUN, made_by(crew))
        fault.is_delivered()
        assert crew.stop()
        accounts = wait_for_accounts(served, RUN, made_by(crew))
        fault.settle(served, accounts)
        assert [account.gaps for account in accounts.values()] == [0] * RANKS
        # Its ranks were in steps all the time: what the collector missed is no time between steps, and no lost run.
        page = served.read_metrics()
        run = served.read_run(RUN)
        assert run is not None
        # Every 25th step is lost in the ranks' rings, and so the time between its neighbors is, however long all takes.
        assert run.goodput.between_steps_ns < 0.1 * run.goodput.wall_ns
        assert run.goodput.productive_ns > sized(2, 30) * NS_PER_S
        assert find_number(page, "rankscope_collector_absent_seconds_total") > sized(1, 20)
        incidents = json.loads(read_url(f"{served.url}/api/v1/incidents"))["incidents"]
        assert [one for one in incidents if one["kind"] in OF_ENDS] == []


def find_number(page: str, series: str) -> float:
    """The value of a series on a page of metrics."""
    return next(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{series} "))


def test_collector_without_descriptors_serves_connected_ranks() -> None:
    with serving() as served, crew_of(RUN, RANKS, served.endpoint) as crew:
        wait_for_accounts(served, RUN, made_by(crew))
        before = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)
        full = psutil.Process(served.pid).num_fds()
        resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (full, before[1]))
        fault = Fault(
            f"no file descriptor left when {2 * RANKS} more ranks come",
            "who is connected is served on; the others are let in once there are some again",
        )
        with crew_of("late", 2 * RANKS, served.endpoint) as late:
            wait_for_reports(late, 10)
            wait_for_acknowledgements(crew, 20)
            assert late.fewest_acknowledged() == 0
            resource.prlimit(served.pid, resource.RLIMIT_NOFILE, before)
            fault.is_over()
            wait_for_accounts(served, "late", made_by(late))
            fault.is_delivered()
            assert late.stop()
            assert crew.stop()
            accounts = wait_for_accounts(served, RUN, made_by(crew))
            late_accounts = wait_for_accounts(served, "late", made_by(late))
            fault.settle(served, late_accounts)
            assert [account.gaps for account in (*accounts.values(), *late_accounts.values())] == [0] * 3 * RANKS


def test_slow_scrapers_hold_nobody_up() -> None:
    """Some never end their request, some read one byte of the answer."""
    with serving() as served, crew_of(RUN, RANKS, served.endpoint) as crew, ExitStack() as ends:
        wait_for_accounts(served, RUN, made_by(crew))
        fault = Fault(
            "16 scrapers that never end their request or read one byte of the answer",
            "each is closed after 5 or 10 s; reports are acknowledged and pages served meanwhile",
        )
        for number in range(16):
            scraper = ends.enter_context(socket.socket())
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            scraper.connect(("127.0.0.1", served.ports[1]))
            if number % 2:
                scraper.sendall(b"GET /metrics HTTP/1.0\r\n")
            else:
                scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert scraper.recv(1) == b"H"
        wait_for_acknowledgements(crew, sized(20, 200))
        assert read_url(f"{served.url}/healthz")
        check_identity(served, RUN)
        assert crew.stop()
        fault.settle(served, wait_for_accounts(served, RUN, made_by(crew)))


def test_page_has_the_last_of_many_elastic_restarts_only() -> None:
    """Every restart begins a new life of each rank, which delivers all it has before the next begins."""
    restarts = sized(10, 1000)
    fault = Fault(
        f"{restarts:,} elastic restarts of all ranks", "each begins new lives; only the last attempt is on the page"
    )
    with serving() as served:
        for restart_count in range(restarts):
            lives = [light_identity(RUN, rank, 2, restart_count) for rank in range(2)]
            crew = Crew([LightRank(life, served.endpoint, ends="failed") for life in lives])
            wait_for_acknowledgements(crew, 1)
            assert crew.stop()
            if restart_count % 100 == 0 or restart_count == restarts - 1:
                served.wait_for_run(RUN, ended_in(restart_count))
                accounts = wait_for_accounts(served, RUN, made_by(crew))
                assert sorted(accounts) == [0, 1]
                assert [account.gaps for account in accounts.values()] == [0, 0]
                if restart_count == restarts - 1:
                    fault.settle(served, accounts)
