"""Ranks behind a real relay and a real collector: they are on the page as if they had come alone, and when the relay or
the collector is killed nothing is lost.
"""

import signal
from pathlib import Path

import psutil
import pytest

from rankscope.measure.shards import choose_collector
from rankscope.measure.units import NS_PER_MS
from tests.integration.fault_figures import Fault
from tests.integration.faults import check_identity, sized, wait_for_accounts
from tests.integration.light_ranks import Crew, crew_of, made_by, wait_for_acknowledgements, wait_for_reports
from tests.integration.relaying import relaying
from tests.integration.serving import Served, find_fixed_port, have_ended, knows_clocks, serving, wait_for
from tests.integration.torchrun import AGENT, OFTEN, run, torchrun
from tests.integration.wire_peer import read_counts

RANKS = 4
RUN = "relayed"


def end_without_loss(served: Served, crew: Crew, fault: Fault | None = None) -> None:
    """The crew ends, and the page accounts for all that it has made, of which nothing was lost on the way."""
    wait_for_accounts(served, RUN, made_by(crew))
    if fault is not None:
        fault.is_delivered()
    assert crew.stop()
    accounts = wait_for_accounts(served, RUN, made_by(crew))
    if fault is not None:
        fault.settle(served, accounts)
    assert {rank: account.overwritten for rank, account in accounts.items()} == {
        rank.identity.rank: rank.overwritten for rank in crew.ranks
    }
    assert [(account.dropped, account.gaps) for account in accounts.values()] == [(0, 0)] * RANKS


def read_number(served: Served, name: str) -> float:
    """A sample without labels."""
    (line,) = [line for line in served.read_metrics().splitlines() if line.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])


def test_ranks_behind_a_relay_look_direct_in_far_fewer_batches() -> None:
    with serving() as served, relaying(served.endpoint) as relay, crew_of(RUN, RANKS, relay.endpoint) as crew:
        # 40 reports a second of each of 4 ranks, in 10 batches a second: 16 in each.
        wait_for_acknowledgements(crew, 60)
        seen = served.wait_for_run(RUN, lambda run: knows_clocks(run) and all(rank.up for rank in run.ranks))
        assert [(rank.identity.rank, rank.up) for rank in seen.ranks] == [(rank, True) for rank in range(RANKS)]
        served.wait_for_metrics("rankscope_relays 1.0\n")
        batches, frames = (
            read_number(served, f"rankscope_{name}_total") for name in ("relay_batches", "frames_received")
        )
        assert frames >= 60 * RANKS
        assert batches < frames / 4
        end_without_loss(served, crew)
        served.wait_for_run(RUN, lambda run: [rank.ended for rank in run.ranks] == ["finished"] * RANKS)


def test_clock_of_a_rank_is_known_within_error_despite_batching() -> None:
    """All clocks are this machine's: the offset is 0, so a bound that is right holds 0. Half the pause between batches
    would be 50 ms: a bound below that shows that the waiting is taken off.
    """
    with serving() as served, relaying(served.endpoint) as relay, crew_of(RUN, RANKS, relay.endpoint):
        seen = served.wait_for_run(RUN, lambda run: knows_clocks(run, error_ns_max=40 * NS_PER_MS))
        assert len(seen.ranks) == RANKS


def test_a_relay_that_is_killed_again_and_again_loses_nothing() -> None:
    listen = f"tcp://127.0.0.1:{find_fixed_port()}"
    kills = sized(3, 20)
    fault = Fault(f"SIGKILL of the relay, {kills} times", "the ranks connect to the next one and send again")
    with serving() as served, crew_of(RUN, RANKS, listen) as crew:
        for _ in range(kills):
            with relaying(served.endpoint, listen=listen) as relay:
                wait_for_acknowledgements(crew, 5)
                relay.end(signal.SIGKILL)
            wait_for_reports(crew, 5)
            check_identity(served, RUN)
        with relaying(served.endpoint, listen=listen):
            fault.is_over()
            wait_for_acknowledgements(crew, 5)
            end_without_loss(served, crew, fault)


def test_collector_killed_behind_a_relay_comes_back_complete() -> None:
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    with relaying(address) as relay, crew_of(RUN, RANKS, relay.endpoint) as crew:
        kills = sized(2, 20)
        fault = Fault(f"SIGKILL of a collector behind a relay, {kills} times", "the relay connects to the next one")
        for _ in range(kills):
            with serving(listen=address) as served:
                wait_for_accounts(served, RUN, made_by(crew))
                wait_for_acknowledgements(crew, 1)
                served.kill()
            wait_for_reports(crew, 10)
        with serving(listen=address) as served:
            fault.is_over()
            wait_for_acknowledgements(crew, 10)
            end_without_loss(served, crew, fault)


def test_relay_of_a_stopped_collector_stays_small_and_catches_up() -> None:
    with serving() as served, relaying(served.endpoint) as relay, crew_of(RUN, RANKS, relay.endpoint) as crew:
        wait_for_acknowledgements(crew, 10)
        process = psutil.Process(relay.pid)
        before = process.memory_info().rss
        served.send(signal.SIGSTOP)
        wait_for_reports(crew, sized(160, 1200))  # at 40 a second: 4 s, twice what it takes to be called gone
        served.send(signal.SIGCONT)
        fault = Fault(f"SIGSTOP of a collector behind a relay for {sized(4, 30)} s", "the ranks keep their reports")
        fault.is_over()
        wait_for_acknowledgements(crew, 160)
        assert process.memory_info().rss - before < 32 << 20
        end_without_loss(served, crew, fault)


def test_a_relay_and_its_collector_killed_together_lose_nothing() -> None:
    address, listen = (f"tcp://127.0.0.1:{find_fixed_port()}" for _ in range(2))
    fault = Fault("SIGKILL of a relay and its collector together", "the ranks send again through the next relay")
    with crew_of(RUN, RANKS, listen) as crew:
        with serving(listen=address) as served, relaying(address, listen=listen) as relay:
            wait_for_acknowledgements(crew, 5)
            served.kill()
            relay.end(signal.SIGKILL)
        wait_for_reports(crew, 20)
        with serving(listen=address) as served, relaying(address, listen=listen):
            fault.is_over()
            wait_for_acknowledgements(crew, 20)
            end_without_loss(served, crew, fault)


def test_one_relay_carries_runs_to_several_collectors_separately() -> None:
    with serving() as first, serving() as second:
        endpoints = [first.endpoint, second.endpoint]
        by_endpoint = {choose_collector(name, endpoints): name for name in map(str, range(64))}
        with (
            relaying(",".join(endpoints)) as relay,
            crew_of(by_endpoint[first.endpoint], 1, relay.endpoint) as one,
            crew_of(by_endpoint[second.endpoint], 1, relay.endpoint) as two,
        ):
            wait_for_acknowledgements(one, 10)
            wait_for_acknowledgements(two, 10)
            assert first.read_run_names() == [by_endpoint[first.endpoint]]
            assert second.read_run_names() == [by_endpoint[second.endpoint]]


def test_training_and_its_sidecar_report_through_a_unix_socket(tmp_path: Path) -> None:
    listen = f"ipc://{tmp_path}/relay"
    with serving() as served, relaying(served.endpoint, listen=listen) as relay:
        settings = {**OFTEN, "RANKSCOPE_RUN": RUN, "RANKSCOPE_COLLECTOR": relay.endpoint}
        script = ("paced.py", "--steps", "20", "--end", "exit", "--end-rank", "1")
        ended = run(torchrun(2, *AGENT, *script), settings)
        assert ended.exit_code != 0
        assert ended.left == ()
        end = served.wait_for_rank(RUN, 1, lambda rank: rank.ended == "failed").end
        served.wait_for_run(RUN, have_ended)
        assert end is not None  # os._exit: only the sidecar can know
        assert end.exit_code == 7
        check_identity(served, RUN)


def test_frames_a_relay_drops_are_on_the_page_and_are_no_loss() -> None:
    """A relay that was started before its collector drops what comes meanwhile: the ranks hold it."""
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    with relaying(address) as relay, crew_of(RUN, RANKS, relay.endpoint) as crew:
        wait_for_reports(crew, 20)
        with serving(listen=address) as served:
            wait_for_acknowledgements(crew, 20)
            dropped = wait_for(
                lambda: read_counts(served, "rankscope_relay_frames_dropped_total").get("no_collector"),
                served.read_metrics,
            )
            assert dropped >= RANKS  # each Hello at least
            end_without_loss(served, crew)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_ends_when_it_is_told_to(number: signal.Signals) -> None:
    with relaying("tcp://127.0.0.1:1") as relay:
        assert relay.end(number) == 0
        assert "ranks connect to" in relay.read_stderr()
