"""Tests of the rank identity, from a launcher's environment."""

import os
import socket

import pytest

from rankscope.agent.identity import drop_rank_variables, read_identity, reads_machine
from rankscope.measure.identity import LABEL_LENGTH_MAX

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "llama-7b",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_identity_from_torchrun() -> None:
    identity = read_identity(TORCHRUN, run="")
    assert (identity.rank, identity.local_rank, identity.world_size) == (5, 1, 8)
    assert (identity.run, identity.restart_count) == ("llama-7b", 2)
    assert (identity.pid, identity.node) == (os.getpid(), socket.gethostname()[:LABEL_LENGTH_MAX])


def test_process_without_launcher_is_rank_0_of_1() -> None:
    identity = read_identity({}, run="")
    assert (identity.rank, identity.local_rank, identity.world_size, identity.restart_count) == (0, 0, 1, 0)
    assert identity.run == f"{socket.gethostname()}:{os.getpid()}"


def test_a_configured_name_of_the_machine_wins() -> None:
    assert read_identity(TORCHRUN, run="", node="gpu-17").node == "gpu-17"


@pytest.mark.parametrize(
    ("run", "left_out", "expected"),
    [
        ("mine", [], "mine"),
        ("", [], "llama-7b"),
        ("", ["TORCHELASTIC_RUN_ID"], "node-0:29500"),
        ("", ["TORCHELASTIC_RUN_ID", "MASTER_ADDR"], f"{socket.gethostname()}:29500"),
    ],
)
def test_the_nearest_name_of_the_run_wins(run: str, left_out: list[str], expected: str) -> None:
    environment = {name: value for name, value in TORCHRUN.items() if name not in left_out}
    assert read_identity(environment, run).run == expected


def test_the_launchers_own_default_is_no_name() -> None:
    environment = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}
    assert read_identity(environment, run="").run == "node-0:29500"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_localhost_runs_on_two_machines_differ(host: str) -> None:
    environment = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": host}
    assert [read_identity(environment, "", node).run for node in ("gpu-1", "gpu-2")] == ["gpu-1:29500", "gpu-2:29500"]


def test_a_name_that_is_too_long_is_cut() -> None:
    assert read_identity({}, run="r" * 1000).run == "r" * LABEL_LENGTH_MAX


@pytest.mark.parametrize("text", ["", "-1", "two", "1.5", " 3"])
def test_a_number_that_is_none_counts_as_not_given(text: str) -> None:
    environment = {**TORCHRUN, "RANK": text, "WORLD_SIZE": text}
    identity = read_identity(environment, run="")
    assert (identity.rank, identity.world_size) == (0, 1)


def test_empty_world_has_one_rank() -> None:
    assert read_identity({"WORLD_SIZE": "0"}, run="").world_size == 1


def test_boot_ids_differ() -> None:
    first, second = read_identity(TORCHRUN, run=""), read_identity(TORCHRUN, run="")
    assert first.boot_id != second.boot_id
    assert first.machine_id == second.machine_id


# -- children of ours -------------------------------------------------------------------------------------------------


def test_a_child_is_no_rank_and_starts_no_agent() -> None:
    assert drop_rank_variables(TORCHRUN | {"RANKSCOPE": "1", "RANKSCOPE_PID": "7", "LD_PRELOAD": "x.so"}).keys() == (
        TORCHRUN.keys() - {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
    )


def test_child_keeps_other_variables() -> None:
    environment = {"PATH": "/bin", "RANKSCOPE_SERVE_TICK_S": "0.5"}
    assert drop_rank_variables(environment) == environment


@pytest.mark.parametrize(
    ("environment", "world_size", "is_reader"),
    [
        ({"LOCAL_RANK": "0"}, 16, True),
        ({"LOCAL_RANK": "1"}, 16, False),
        ({}, 16, False),
        ({"LOCAL_RANK": "x"}, 16, False),
        ({}, 1, True),
    ],
)
def test_machine_is_read_by_a_rank_known_to_be_its_first(
    environment: dict[str, str], world_size: int, *, is_reader: bool
) -> None:
    assert reads_machine(environment, world_size) == is_reader
