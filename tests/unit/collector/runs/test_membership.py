"""Which rank processes are of a run, and what the Hello of another one begins."""

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.invariants import InvariantError
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.membership import RankProcesses, begins_attempt, is_to_be_added
from rankscope.collector.runs.rank import RankState
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello


def identity_of(rank: int, *, node: str = "n0", restarts: int = 0, world_size: int = 4, boot: str = "") -> RankIdentity:
    return RankIdentity(
        run="r", rank=rank, local_rank=rank, world_size=world_size, node=node, restart_count=restarts,
        boot_id=boot or f"boot-{rank:04}", pid=1,
    )  # fmt: skip


def hello_of(identity: RankIdentity, *, left_behind: bool = False) -> Hello:
    return Hello(
        identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=1, left_behind=left_behind
    )


def attempt_of(*identities: RankIdentity, former: Attempt | None = None) -> Attempt:
    attempt = Attempt.begin(identities[0], CollectorConfig(), former)
    for identity in identities:
        attempt.add(RankState.begin(hello_of(identity), 0))
    return attempt


def test_processes_are_known_until_the_attempt_after_the_next() -> None:
    processes = RankProcesses()
    processes.add(identity_of(3))
    assert (processes.find_rank("boot-0003"), "boot-0003" in processes) == (3, True)
    processes.begin_attempt()
    assert (processes.find_rank("boot-0003"), "boot-0003" in processes, [*processes]) == (None, True, ["boot-0003"])
    processes.begin_attempt()
    assert "boot-0003" not in processes


def test_foreign_boot_ids_break_an_invariant() -> None:
    processes = RankProcesses()
    processes.add(identity_of(3))
    with pytest.raises(InvariantError, match="boot ids and ranks differ"):
        processes.validate({})


def test_process_of_the_attempt_before_is_not_added_again() -> None:
    processes = RankProcesses()
    processes.add(identity_of(0))
    processes.begin_attempt()
    attempt = attempt_of(identity_of(1))
    assert not is_to_be_added(hello_of(identity_of(0)), attempt, processes)
    assert is_to_be_added(hello_of(identity_of(0, boot="boot-new0")), attempt, processes)


def test_process_that_counts_fewer_restarts_is_older() -> None:
    attempt = attempt_of(identity_of(0, restarts=2))
    assert not is_to_be_added(hello_of(identity_of(1, restarts=1)), attempt, RankProcesses())
    assert is_to_be_added(hello_of(identity_of(1, restarts=1, node="n1")), attempt, RankProcesses())


def test_orphan_replaces_no_rank() -> None:
    attempt = attempt_of(identity_of(0))
    orphan = hello_of(identity_of(0, boot="boot-orphan"), left_behind=True)
    assert not is_to_be_added(orphan, attempt, RankProcesses())
    assert is_to_be_added(hello_of(identity_of(1), left_behind=True), attempt, RankProcesses())
    assert not is_to_be_added(hello_of(identity_of(1, restarts=1), left_behind=True), attempt, RankProcesses())


@pytest.mark.parametrize(
    ("identity", "begins"),
    [
        (identity_of(0, boot="boot-next"), True),
        (identity_of(2), False),
        (identity_of(2, world_size=8), True),
        (identity_of(2, restarts=1), True),
        (identity_of(2, restarts=1, node="n1"), True),
        (identity_of(2, node="n1"), False),
    ],
    ids=["rank is taken", "same attempt", "other world", "node restarted", "new node counts more", "new node"],
)
def test_what_begins_another_attempt(identity: RankIdentity, *, begins: bool) -> None:
    assert begins_attempt(identity, attempt_of(identity_of(0), identity_of(1))) is begins


def test_node_of_the_attempt_before_joins_whatever_it_counts() -> None:
    former = attempt_of(identity_of(0), identity_of(1, node="n1"))
    attempt = attempt_of(identity_of(0, restarts=1), former=former)
    assert not begins_attempt(identity_of(1, node="n1", restarts=5), attempt)
