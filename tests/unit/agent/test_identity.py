"""Tests of the rank identity, from a launcher's environment."""

import os
import pwd
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from rankscope.agent.identity import drop_rank_variables, name_script, read_identity, read_script, reads_machine
from rankscope.measure.codec import decode, encode
from rankscope.measure.identity import LABEL_LENGTH_MAX, RankIdentity
from rankscope.measure.messages import Hello

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


def hello_of(identity: RankIdentity) -> Hello:
    return Hello(
        identity=identity, first_sequence=1, host_ns=1, wall_ns=1, report_interval_ns=10**9, agent_version="0.1.0",
        python_version="3.11.7", torch_version="2.13.0",
    )  # fmt: skip


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


@pytest.mark.parametrize(
    "name", ["PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "COVERAGE_PROCESS_START"]
)
def test_child_says_and_measures_nothing_that_the_scripts_python_is_to(name: str) -> None:
    assert drop_rank_variables({"PATH": "/bin", name: "1"}) == {"PATH": "/bin"}


def test_child_keeps_other_variables() -> None:
    environment = {"PATH": "/bin", "RANKSCOPE_SERVE_CONSTANT_TICK_S": "0.5"}
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


SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_USER": "ada", "USER": "root"}
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_slurm_job_and_its_owner_are_reported() -> None:
    identity = read_identity(SLURM, run="", with_user=True)
    assert (identity.slurm_job_id, identity.user) == ("4711", "ada")


def test_user_is_left_out_unless_asked_for() -> None:
    identity = read_identity(SLURM, run="")
    assert (identity.slurm_job_id, identity.user) == ("4711", "")


@pytest.mark.parametrize("environment", [{"LOGNAME": "ada", "USER": "bob"}, {"LOGNAME": "", "USER": "ada"}])
def test_user_without_slurm_is_the_login_name(environment: dict[str, str]) -> None:
    assert read_identity(environment, run="", with_user=True).user == "ada"


def test_user_without_variables_is_empty_and_no_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(pwd, "getpwuid", asked.append)
    assert read_identity({}, run="", with_user=True).user == ""
    assert asked == []


@pytest.mark.parametrize("prefix", ["", "MY_"])
def test_pod_and_namespace_are_those_of_the_downward_api(prefix: str) -> None:
    environment = {f"{prefix}POD_NAME": "bert-0-x7k2p", f"{prefix}POD_NAMESPACE": "ml", **IN_POD}
    identity = read_identity(environment, run="", namespace_file="/nowhere")
    assert (identity.k8s_namespace, identity.k8s_pod) == ("ml", "bert-0-x7k2p")


def test_default_namespace_is_that_of_the_service_account(tmp_path: Path) -> None:
    mounted = tmp_path / "namespace"
    mounted.write_text("team-a\n")
    inside = read_identity(IN_POD, run="", namespace_file=str(mounted))
    assert (inside.k8s_namespace, inside.k8s_pod) == ("team-a", "")
    assert read_identity({}, run="", namespace_file=str(mounted)).k8s_namespace == ""
    assert read_identity(IN_POD, run="", namespace_file=str(tmp_path / "none")).k8s_namespace == ""


def test_what_a_scheduler_sets_is_bounded_and_can_be_sent() -> None:
    hostile = {"SLURM_JOB_ID": "9" * 1000, "USER": "a\udcff", "POD_NAME": " p\n", "POD_NAMESPACE": "n" * 1000}
    identity = read_identity(hostile, run="", with_user=True)
    assert (identity.slurm_job_id, identity.user, identity.k8s_pod) == ("9" * LABEL_LENGTH_MAX, "a?", "p")
    assert decode(encode(hello_of(identity))) == hello_of(identity)


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_RUN_ID": "r\udcff"}, {"MASTER_PORT": "1\udcff"}])
def test_names_that_are_no_utf_8_can_be_sent(environment: dict[str, str]) -> None:
    hello = hello_of(read_identity(environment, run="", node="gpu\udcff"))
    hello = msgspec.structs.replace(hello, script=name_script(["/home/me/tr\udcffin.py"]))
    assert (hello.identity.node, hello.script) == ("gpu?", "tr?in.py")
    assert decode(encode(hello)) == hello


@pytest.mark.parametrize("arguments", [[None], [b"train.py"], [3], None, []])
def test_script_that_cannot_be_named_is_empty(arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert read_script() == ""


def test_embedded_interpreter_runs_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "argv")
    assert read_script() == ""


def test_run_of_torchrun_standalone_is_named_after_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "6f0a9c1b-52d4-4b0e-9d3c-0f6e2b7a1c55"}
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py", "--epochs", "3"])
    assert read_identity(environment, "").run == "train-6f0a9c1b"
    assert read_identity(environment, "mine").run == "mine"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert read_identity(environment, "").run == environment["TORCHELASTIC_RUN_ID"]
