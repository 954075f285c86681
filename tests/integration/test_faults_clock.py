"""The clocks of the collector's host jump, in a collector in this process whose clocks the test moves."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.service import Service
from rankscope.collector.storage.run_reader import opening_run
from rankscope.measure.clock import SystemClock
from rankscope.measure.units import NS_PER_S, HostNs, WallNs, s_to_ns
from tests.integration.fault_figures import Fault
from tests.integration.faults import check_identity, wait_for_accounts
from tests.integration.light_ranks import crew_of, made_by, wait_for_acknowledgements
from tests.integration.serving import Api, find_rank, knows_clocks
from tests.integration.test_faults_collector import RANKS, RUN

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class JumpingClock(SystemClock):
    """The machine's clocks, moved by as much as the test says."""

    def __init__(self) -> None:
        self.wall_jump_s = 0.0
        self.monotonic_jump_s = 0.0

    def monotonic_ns(self) -> HostNs:
        """See Clock."""
        return HostNs(super().monotonic_ns() + s_to_ns(self.monotonic_jump_s))

    def wall_ns(self) -> WallNs:
        """See Clock."""
        return WallNs(super().wall_ns() + s_to_ns(self.wall_jump_s))


class Collecting(Api):
    """A collector in this process."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.metrics_url.removesuffix("/metrics"))
        self.endpoint = service.endpoint


@contextlib.contextmanager
def collecting(store: Path, clock: JumpingClock) -> Iterator[Collecting]:
    """A collector on a thread, until the end of the block."""
    config = CollectorConfig(
        listen="tcp://127.0.0.1:0", http_listen="127.0.0.1:0", store=str(store), tick_s=0.1, clock_ping_s=0.2
    )
    service = Service(config, clock)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield Collecting(service)
    finally:
        service.stop()
        thread.join()


@pytest.mark.parametrize("jump_s", [-DAY_S, -1.0, DAY_S])
def test_a_wall_clock_that_jumps_costs_no_step_and_no_rank(jump_s: float, tmp_path: Path) -> None:
    clock = JumpingClock()
    with collecting(tmp_path / "store.db", clock) as api, crew_of(RUN, RANKS, api.endpoint) as crew:
        wait_for_accounts(api, RUN, made_by(crew))
        wait_for_acknowledgements(crew, 10)
        fault = Fault(
            f"the wall clock of the collector's host jumps by {jump_s:+,.0f} s",
            "nothing is compared or counted by it; the history has the new time from there on",
        )
        clock.wall_jump_s = jump_s
        fault.is_over()
        before = made_by(crew)
        wait_for_accounts(api, RUN, before)
        fault.is_delivered()
        assert crew.stop()
        accounts = wait_for_accounts(api, RUN, made_by(crew))
        fault.settle(None, accounts)
        assert [account.gaps for account in accounts.values()] == [0] * RANKS
        assert [account.elsewhere for account in accounts.values()] == [0] * RANKS
        assert "rankscope_collector_errors_total{" not in api.read_metrics()
    with opening_run(tmp_path / "store.db", RUN) as history:
        steps = [step.step for step in history.read_steps()]
    assert steps[0] == 1  # the ring has overwritten the one before
    assert len(steps) == len(set(steps))


@pytest.mark.parametrize("jump_s", [60.0, DAY_S])
def test_collector_away_for_long_takes_no_rank_for_silent(jump_s: float, tmp_path: Path) -> None:
    """Stopped and continued, or moved with its virtual machine: its own clock is ahead of every rank's at once."""
    clock = JumpingClock()
    with collecting(tmp_path / "store.db", clock) as api, crew_of(RUN, RANKS, api.endpoint) as crew:
        wait_for_accounts(api, RUN, made_by(crew))
        api.wait_for_run(RUN, knows_clocks)
        fault = Fault(
            f"the monotonic clock of the collector's host jumps by {jump_s:+,.0f} s",
            "nobody counts as silent for it; offsets are known anew from the next answers",
        )
        clock.monotonic_jump_s = jump_s
        fault.is_over()
        wait_for_acknowledgements(crew, 10)
        run = api.wait_for_run(RUN, lambda run: knows_clocks(run, error_ns_max=NS_PER_S / 10))
        fault.is_delivered()
        assert [rank.ended for rank in run.ranks] == [None] * RANKS
        assert [find_rank(run, rank).first_sequence for rank in range(RANKS)] == [1] * RANKS
        check_identity(api, RUN)
        assert crew.stop()
        accounts = wait_for_accounts(api, RUN, made_by(crew))
        fault.settle(None, accounts)
        assert [(account.gaps, account.elsewhere) for account in accounts.values()] == [(0, 0)] * RANKS
