"""Checks of the doctor, case by case."""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from rankscope.collector.commands.doctor import Doctor, render
from rankscope.collector.doctor import machine, reach
from rankscope.collector.doctor.check import NOTE, OK, PROBLEM, note, ok, problem
from rankscope.collector.doctor.interpreter import check_interpreter, inspect_interpreter
from rankscope.measure.inspection import GpuFound, Inspection, InspectorFound, RasFound, TorchFound
from rankscope.measure.key_files import ClientKeys, KeyPair

UUID = "GPU-1"
CPU = TorchFound(version="2.13.0", backends=("gloo",))
CUDA = TorchFound(version="2.13.0", cuda="13.0", backends=("gloo", "nccl"), gpus=(UUID,))


def states(torch: TorchFound, environment: Mapping[str, str] | None = None, **more: Any) -> dict[str, str]:
    found = Inspection(
        python="3.11.7", release="0.1.0", torch=torch, is_autoloaded=more.pop("is_autoloaded", True), **more
    )
    return {check.name: check.state for check in check_interpreter(found, environment or {})}


def test_machine_without_gpus_lacks_only_gpus() -> None:
    assert states(CPU) == {
        "python": OK, "torch": OK, "launch": OK, "backends": OK, "profiler": OK, "gpu": NOTE, "settings": OK,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("torch", "device_windows", "state", "text"),
    [
        (CUDA, "governed", OK, "CUPTI cannot be detached with CUDA 13.0 (never beside a CUDA graph)"),
        (msgspec.structs.replace(CUDA, can_detach=True), "governed", OK, "CUPTI can be detached with CUDA 13.0"),
        (CUDA, "always", NOTE, "always: what they cost is not measured"),
        (CUDA, "off", NOTE, "off"),
        (CUDA, "on_demand", OK, "on_demand: none begins by itself; the ratios of a GPU come from captures"),
        (msgspec.structs.replace(CUDA, cuda="", hip="6.2"), "governed", OK, "governed; on AMD nothing is detached"),
    ],
)
def test_what_governs_windows_of_a_gpu_is_named(torch: TorchFound, device_windows: str, state: str, text: str) -> None:
    found = Inspection(python="3.11.7", release="0.1.0", torch=torch, is_autoloaded=True, device_windows=device_windows)
    (check,) = [check for check in check_interpreter(found, {}) if check.name == "windows of GPUs"]
    assert (check.state, text in check.found) == (state, True), check.found


def test_windows_on_demand_without_captures_are_noted() -> None:
    found = Inspection(
        python="3.11.7",
        release="0.1.0",
        torch=CUDA,
        is_autoloaded=True,
        device_windows="on_demand",
        takes_captures=False,
    )
    (check,) = [check for check in check_interpreter(found, {}) if check.name == "windows of GPUs"]
    assert (check.state, check.cure) == (NOTE, "Set capture_orders = true.")


@pytest.mark.parametrize(
    ("ras", "state", "text"),
    [
        (RasFound(), NOTE, "not asked in a stall"),
        (RasFound(address="a:1", protocol=2), OK, "a job answers at a:1, protocol 2; a stalled run asks it which"),
        (RasFound(address="a:1"), OK, "nothing listens at a:1: a job listens there while it runs, with NCCL 2.24"),
        (RasFound(address="a:1", problem="a:1 did not answer in time"), NOTE, "a:1 did not answer in time"),
    ],
)
def test_service_of_nccl_is_named(ras: RasFound, state: str, text: str) -> None:
    found = Inspection(python="3.11.7", release="0.1.0", torch=CUDA, is_autoloaded=True, ras=ras)
    (check,) = [check for check in check_interpreter(found, {}) if check.name == "NCCL RAS"]
    assert (check.state, text in check.found) == (state, True), check.found


@pytest.mark.parametrize(
    ("inspector", "state", "text"),
    [
        (InspectorFound(), OK, "not switched on (NCCL_INSPECTOR_ENABLE)"),
        (InspectorFound(folder="/d", interval_us=500_000), OK, "would dump to /d every 500.0 ms; their sidecar reads"),
        (InspectorFound(folder="/d"), OK, "would dump to /d all the time (before NCCL 2.30: never)"),
        (InspectorFound(folder="/d", problem="X is 0"), NOTE, "its dumps would not be read: X is 0"),
    ],
)
def test_dumps_of_nccl_are_named(inspector: InspectorFound, state: str, text: str) -> None:
    found = Inspection(python="3.11.7", release="0.1.0", torch=CUDA, is_autoloaded=True, inspector=inspector)
    (check,) = [check for check in check_interpreter(found, {}) if check.name == "NCCL Inspector"]
    assert (check.state, text in check.found) == (state, True), check.found


def test_machine_with_readable_gpu_lacks_nothing() -> None:
    found = states(CUDA, gpus=(GpuFound(uuid=UUID, model="H100", absent={"nvlink_tx_bytes": "not_supported"}),))
    assert set(found.values()) == {OK}


def test_unreadable_values_are_named_with_the_reason() -> None:
    gpu = GpuFound(
        uuid=UUID,
        model="H100",
        absent={"ecc_corrected": "no_permission", "power_w": "no_permission", "sm_active": "unknown"},
    )
    found = Inspection(python="3", release="0", torch=CUDA, is_autoloaded=True, gpus=(gpu,))
    (check,) = [check for check in check_interpreter(found, {}) if check.name == f"nvml {UUID}"]
    assert check.state == NOTE
    assert check.found == "H100: no_permission: ecc_corrected, power_w; unknown: sm_active"


@pytest.mark.parametrize(
    ("torch", "more", "name", "state"),
    [
        (msgspec.structs.replace(CPU, problem="ModuleNotFoundError: No module named 'torch'"), {}, "torch", NOTE),
        (CPU, {"is_autoloaded": False}, "launch", NOTE),
        (CPU, {"environment": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}}, "launch", NOTE),
        (msgspec.structs.replace(CPU, backends=()), {}, "backends", NOTE),
        (msgspec.structs.replace(CUDA, backends=("gloo",)), {}, "backends", NOTE),
        (msgspec.structs.replace(CPU, windows_problem="no Kineto"), {}, "profiler", NOTE),
        (msgspec.structs.replace(CPU, has_autoload=False), {}, "launch", NOTE),
        (msgspec.structs.replace(CUDA, gpus=("",)), {}, "gpu", NOTE),
        (CUDA, {"nvml_problem": "driver_not_loaded"}, "nvml", PROBLEM),
        (CPU, {"settings_problem": "stall_s is -1"}, "settings", PROBLEM),
    ],
)  # fmt: skip
def test_each_missing_part_has_its_check(torch: TorchFound, more: dict[str, Any], name: str, state: str) -> None:
    assert states(torch, **more)[name] == state


def test_amd_gpus_are_not_checked_with_nvml() -> None:
    found = states(msgspec.structs.replace(CUDA, cuda="", hip="6.2"), nvml_problem="library_not_found")
    assert not any(name.startswith("nvml") for name in found)


def test_every_failed_check_has_costs_and_cure() -> None:
    found = Inspection(
        python="3", release="0", torch=TorchFound(version="2"), is_autoloaded=False, settings_problem="x is y"
    )  # fmt: skip
    checks = [
        *check_interpreter(found, {}),
        *machine.check_machine({"TORCH_FR_BUFFER_SIZE": "0"}, "/nope", 0, has_gpus=True),
    ]
    assert all(check.costs and check.cure for check in checks if check.state != OK)


@pytest.mark.parametrize(
    ("text", "is_root", "state"),
    [
        ("RmProfilingAdminOnly: 1\n", False, NOTE),
        ("RmProfilingAdminOnly: 1\n", True, OK),
        ("RmProfilingAdminOnly: 0\n", False, OK),
    ],
)
def test_restricted_profiling_is_found_in_driver_parameters(
    text: str, is_root: bool, state: str, tmp_path: Path
) -> None:
    (tmp_path / "params").write_text(text)
    assert machine.check_profiling(tmp_path / "params", is_root=is_root).state == state
    assert machine.check_profiling(tmp_path / "none", is_root=is_root).state == OK


def test_environment_shows_other_profilers_and_disabled_recorder() -> None:
    assert machine.check_other_profilers({"CUDA_INJECTION64_PATH": "/opt/nsys/lib.so"}).state == NOTE
    assert machine.check_other_profilers({"CUDA_INJECTION64_PATH": ""}).state == OK
    assert machine.check_flight_recorder({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}).state == NOTE
    assert machine.check_flight_recorder({"TORCH_FR_BUFFER_SIZE": "2000"}).state == OK


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({}, OK),
        ({"TORCH_NCCL_ENABLE_TIMING": "TRUE"}, OK),
        ({"TORCH_NCCL_ENABLE_TIMING": "0"}, NOTE),
        ({"TORCH_NCCL_CUDA_EVENT_CACHE": "0"}, NOTE),
        ({"TORCH_NCCL_ENABLE_TIMING": "1", "RANKSCOPE_NCCL_TIMING": "off"}, NOTE),
        ({"RANKSCOPE_NCCL_TIMING": "measured"}, OK),
        ({"TORCH_NCCL_ENABLE_TIMING": "0", "RANKSCOPE_NCCL_TIMING": "measured"}, NOTE),
    ],
)
def test_prevented_timing_of_nccl_is_a_note(environment: dict[str, str], state: str) -> None:
    assert machine.check_nccl_timing(environment).state == state


@pytest.mark.parametrize(("limit", "state"), [(1024, NOTE), (65_536, OK), (-1, OK)])
def test_low_limit_of_open_files_is_a_note(limit: int, state: str) -> None:
    assert machine.check_open_files(limit).state == state


@pytest.mark.parametrize(("status", "state"), [(0x2001, OK), (0x0040, NOTE), (None, NOTE)])
def test_unsynchronized_clock_is_a_note(status: int | None, state: str) -> None:
    assert machine.check_clock(status).state == state


def test_kernel_reports_its_clock_status() -> None:
    status = machine.read_clock_status()
    assert status is None or 0 <= status < 1 << 16  # the flags of adjtimex(2)


def test_network_ports_are_listed_with_their_states(tmp_path: Path) -> None:
    assert machine.check_network_ports(tmp_path).state == OK
    for card, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"), ("mlx5_2", "")):
        folder = tmp_path / card / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
    (tmp_path / "mlx5_2" / "ports" / "1" / "state").unlink()
    found = machine.check_network_ports(tmp_path)
    assert (found.state, found.found) == (NOTE, "mlx5_0/1 active, mlx5_1/1 down, mlx5_2/1 unknown")


def test_more_ports_than_an_agent_reads_are_counted(tmp_path: Path) -> None:
    for number in range(machine.PORTS_NAMED_MAX + 2):
        folder = tmp_path / f"mlx5_{number}" / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text("4: ACTIVE\n")
    found = machine.check_network_ports(tmp_path)
    assert found.state == OK
    assert found.found.endswith(" active, 2 more, which are not read")


def test_port_whose_name_is_no_text_can_be_printed(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"mlx\xff") / "ports" / "1"
    folder.mkdir(parents=True)
    (folder / "state").write_text("4: ACTIVE\n")
    assert machine.check_network_ports(tmp_path).found == "mlx\ufffd/1 active"


def test_kernel_without_cpu_pressure_is_a_note(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    assert machine.check_cpu_pressure(file).state == NOTE
    file.write_text("some avg10=0.00 avg60=0.00 avg300=0.08 total=2198677903\n")
    assert machine.check_cpu_pressure(file).state == OK


def test_unwritable_folder_and_taken_port_are_problems(tmp_path: Path) -> None:
    assert machine.check_folder(str(tmp_path)).state == OK
    assert machine.check_folder(str(tmp_path / "none")).state == PROBLEM
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        assert machine.check_port(port).state == PROBLEM


@pytest.mark.parametrize(
    ("seen", "has_keys", "expected"),
    [
        ([zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED], False, "accepts this agent"),
        ([zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED], True, "accepts this agent, with its key"),
        ([zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_FAILED_AUTH], True, "this agent's key is not allowed"),
        ([zmq.EVENT_CONNECTED], False, "something listens there and refuses agents without keys"),
        ([zmq.EVENT_CONNECTED], True, "something listens there and refuses this key"),
        ([], True, "no answer within 5 s"),
    ],
)
def test_events_of_the_connection_become_a_check(seen: list[int], has_keys: bool, expected: str) -> None:
    keys = ClientKeys("k" * 40, KeyPair("p" * 40, "s" * 40)) if has_keys else None
    assert reach._judge("connection", seen, keys).found == expected


def test_unreadable_keys_are_a_problem(tmp_path: Path) -> None:
    (check,) = reach.check_connections("tcp://127.0.0.1:9", str(tmp_path / "none"), str(tmp_path / "none"))
    assert (check.state, "cannot be read" in check.found) == (PROBLEM, True)


def test_interpreter_that_fails_or_prints_nothing_is_a_problem(tmp_path: Path) -> None:
    missing = inspect_interpreter(str(tmp_path / "python"))
    assert not isinstance(missing, Inspection)
    assert missing.state == PROBLEM
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho 'Illegal instruction' >&2\nexit 132\n")
    silent.chmod(0o755)
    found = inspect_interpreter(str(silent))
    assert not isinstance(found, Inspection)
    assert "Illegal instruction" in found.found


def test_checks_are_printed_with_costs_and_counts() -> None:
    text = render([ok("a", "fine"), note("b", "lacks", "this", "that"), problem("c", "x\x1b[2J", "this", "that")])
    assert text.splitlines() == [
        "ok    a: fine",
        "note  b: lacks", "        costs: this", "        do: that",
        "FAIL  c: x\\x1b[2J", "        costs: this", "        do: that",
        "1 ok, 1 missing, 1 not working",
    ]  # fmt: skip


def test_invalid_address_does_not_hide_the_other_checks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    Doctor().prepare_parser(parser)
    options = parser.parse_args(["--python", str(tmp_path / "none"), "--url", "tcp://gpu:18490", "--json"])
    assert Doctor().run(options) == 1
    first, *_, last = json.loads(capsys.readouterr().out)
    assert (first["name"], last["name"], last["state"]) == ("python", "http", PROBLEM)
    said = "url is 'tcp://gpu:18490' (from the command line); an HTTP address begins with http:// or https://."
    assert last["found"] == said


def test_exit_status_is_one_for_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    Doctor().prepare_parser(parser)
    options = parser.parse_args(["--python", str(tmp_path / "none"), "--json"])
    assert Doctor().run(options) == 1
    assert '"state": "problem"' in capsys.readouterr().out
