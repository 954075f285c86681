"""The network between ranks and collector is cut, or slow and broken again and again: nothing is lost."""

import subprocess

import pytest

from tests.integration.fault_figures import Fault
from tests.integration.faults import (
    IS_SOAK,
    BadNetwork,
    RankProcess,
    check_identity,
    ranks_of,
    sized,
    wait_for_accounts,
)
from tests.integration.light_ranks import crew_of
from tests.integration.network_namespace import laid, why_none
from tests.integration.serving import serving, wait_for

RUN = "network"


def find_connections(port: int) -> list[str]:
    """The lines of `ss` about connections to this port, each with the timer that runs."""
    command = ("ss", "--no-header", "--tcp", "--numeric", "--options", "state", "established", f"sport = :{port}")
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=500).stdout.splitlines()


def test_a_network_that_is_cut_and_comes_back_costs_nothing() -> None:
    reason = why_none()
    if reason:
        pytest.skip(reason)
    with (
        laid() as cable,
        serving("--insecure", listen=f"tcp://{cable.here}:0") as served,
        ranks_of([RankProcess(RUN, "0", "1", served.endpoint, prefix=cable.prefix)]) as (rank,),
    ):
        rank.wait_for_report(5)
        wait_for_accounts(served, RUN, {0: 1})
        fault = Fault(
            f"the network cut for {sized(3, 60)} s",
            "the rank connects again by itself, within 5 s of the repair, and sends what was not acknowledged",
        )
        cable.cut()
        rank.wait_for_reports(sized(120, 2400))  # at 40 a second: 3 s, and 60 s
        cut_off = rank.made
        cable.mend()
        fault.is_over()
        wait_for_accounts(served, RUN, {0: cut_off})
        fault.is_delivered()
        rank.stop()
        accounts = wait_for_accounts(served, RUN, {0: rank.made})
        fault.settle(served, accounts)
        account = accounts[0]
        assert (account.made, account.gaps, account.elsewhere) == (rank.made, 0, 0)


def test_kernel_closes_the_connection_of_a_machine_that_is_gone() -> None:
    """Nobody tells the collector, which still asks the rank for its clock. That takes two minutes, so only `make soak`
    waits for it (tests/integration/test_receiver.py sees that the kernel is told to).
    """
    reason = why_none() if IS_SOAK else "two minutes; make soak has them"
    if reason:
        pytest.skip(reason)
    with (
        laid() as cable,
        serving("--insecure", listen=f"tcp://{cable.here}:0") as served,
        ranks_of([RankProcess(RUN, "0", "1", served.endpoint, prefix=cable.prefix)]) as (rank,),
    ):
        rank.wait_for_report(5)
        wait_for_accounts(served, RUN, {0: 1})
        cable.cut()
        rank.kill()
        assert find_connections(served.ports[0])
        fault = Fault("a machine that is gone for good", "the kernel closes its half-open connection after two minutes")
        fault.is_over()
        wait_for(
            lambda: None if find_connections(served.ports[0]) else True,
            lambda: f"still there: {find_connections(served.ports[0])}",
            deadline_s=300,
        )
        fault.settle(served, check_identity(served, RUN))


@pytest.mark.parametrize("seed", range(sized(1, 3)))
def test_every_report_arrives_once_on_a_slow_breaking_network(seed: int) -> None:
    """200 ms each way, and one piece of data in 20 ends its connection until reports have arrived all the same. Then it
    ends none, because how long the rest would take to arrive has no limit. The ranks keep what they make meanwhile.
    """
    with serving() as served:
        network = BadNetwork(served.ports[0], delay_s=0.2, loss_ratio=0.05, seed=seed)
        try:
            with crew_of(RUN, 4, network.endpoint, reports_max=1 << 16) as crew:
                wait_for(
                    lambda: True if network.broken >= sized(2, 40) and crew.fewest_acknowledged() >= 20 else None,
                    lambda: f"{network.broken} are broken, {crew.fewest_acknowledged()} reports acknowledged",
                    deadline_s=sized(120, 900),
                )
                fault = Fault(
                    f"200 ms of delay each way, 5 % of the pieces break their connection, {network.broken} broken",
                    "each time the rank connects again and goes back to what was not acknowledged",
                )
                network.mend()
                fault.is_over()
                assert crew.stop()
                made = {rank.identity.rank: rank.made for rank in crew.ranks}
                accounts = wait_for_accounts(served, RUN, made)
                fault.settle(served, accounts)
                assert {rank: account.made for rank, account in accounts.items()} == made
                assert [account.gaps for account in accounts.values()] == [0] * 4
        finally:
            network.close()
