"""The network between ranks and collector is cut, or slow and broken again and again: nothing is lost."""

import pytest

from tests.integration.faults import BadNetwork, RankProcess, ranks_of, sized, wait_for_accounts
from tests.integration.light_ranks import crew_of
from tests.integration.network_namespace import laid, why_none
from tests.integration.serving import serving, wait_for

RUN = "network"


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
        cable.cut()
        rank.wait_for_reports(sized(120, 2400))  # at 40 a second: 3 s, and 60 s
        cut_off = rank.made
        cable.mend()
        wait_for_accounts(served, RUN, {0: cut_off})
        rank.stop()
        account = wait_for_accounts(served, RUN, {0: rank.made})[0]
        assert (account.made, account.gaps, account.elsewhere) == (rank.made, 0, 0)


@pytest.mark.parametrize("seed", range(sized(1, 3)))
def test_on_a_slow_network_that_breaks_connections_every_report_arrives_once(seed: int) -> None:
    """200 ms each way, and one piece of data in 20 ends its connection."""
    with serving() as served:
        network = BadNetwork(served.ports[0], delay_s=0.2, loss_ratio=0.05, seed=seed)
        try:
            with crew_of(RUN, 4, network.endpoint) as crew:
                wait_for(
                    lambda: True if network.broken >= sized(2, 40) and crew.fewest_acknowledged() >= 20 else None,
                    lambda: f"{network.broken} are broken, {crew.fewest_acknowledged()} reports acknowledged",
                    deadline_s=sized(120, 900),
                )
                assert crew.stop()
                made = {rank.identity.rank: rank.made for rank in crew.ranks}
                accounts = wait_for_accounts(served, RUN, made)
                assert {rank: account.made for rank, account in accounts.items()} == made
                assert [account.gaps for account in accounts.values()] == [0] * 4
        finally:
            network.close()
