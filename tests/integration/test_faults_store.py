"""The disk of the collector's store fills up: reports are taken in and counted as before, and what waits is written."""

from pathlib import Path

import pytest

from rankscope.collector.storage.run_reader import opening_run
from tests.integration.fault_figures import Fault
from tests.integration.faults import sized, wait_for_accounts
from tests.integration.light_ranks import crew_of, made_by, wait_for_acknowledgements
from tests.integration.serving import serving, wait_for_readiness
from tests.integration.small_disk import fill, mounted
from tests.integration.test_faults_collector import RANKS, RUN


def test_full_disk_of_the_store_is_told_and_costs_no_report(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", 64) as folder:
        if folder is None:
            pytest.skip("no file system can be mounted here: that needs root")
        store = folder / "store.db"
        with serving("--store", str(store)) as served, crew_of(RUN, RANKS, served.endpoint) as crew:
            wait_for_accounts(served, RUN, made_by(crew))
            wait_for_readiness(served, "ok\n")
            fault = Fault(
                "the disk of the store full",
                "it goes on in memory, says so in /readyz and rankscope_store_writable, and catches up",
            )
            filler = fill(folder)
            wait_for_acknowledgements(crew, 10)
            wait_for_readiness(served, "ok, but nothing is written to the store, and all is kept in memory: ")
            wait_for_acknowledgements(crew, sized(20, 1200))  # at 40 a second: 0.5 s, and 30 s
            filler.unlink()
            fault.is_over()
            wait_for_readiness(served, "ok\n")
            fault.is_delivered()
            assert crew.stop()
            accounts = wait_for_accounts(served, RUN, made_by(crew))
            fault.settle(served, accounts)
            assert [account.gaps for account in accounts.values()] == [0] * RANKS
            served.wait_for_metrics("rankscope_history_rows_dropped_total 0.0\n")
            with opening_run(store, RUN) as history:
                assert next(iter(history.read_steps())).step == 1  # the ring has overwritten the one before
