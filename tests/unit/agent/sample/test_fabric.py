"""Network ports and interfaces, from folders like those of sysfs."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankscope.agent.sample.fabric import (
    COUNTERS,
    INTERFACES_MAX,
    INTERFACES_READ_MAX,
    PORTS_MAX,
    read_interfaces,
    read_ports,
)
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Report
from rankscope.measure.records import InterfaceSample, NodeSample

MELLANOX: Mapping[str, str] = {
    "state": "4: ACTIVE\n",
    "rate": "400 Gb/sec (4X NDR)\n",
    **{file: f"{number}\n" for number, file in enumerate(COUNTERS.values(), 1)},
}
"""Every file that we read; the counters are 1, 2, 3, ... in our order."""


def add_port(folder: Path, card: str, port: str = "1", files: Mapping[str, str] = MELLANOX) -> Path:
    place = folder / card / "ports" / port
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def add_interface(folder: Path, name: str, *, is_real: bool = True, operstate: str = "up", **counts: int) -> None:
    place = folder / name / "statistics"
    place.mkdir(parents=True)
    if is_real:
        (folder / name / "device").mkdir()
    (folder / name / "operstate").write_text(f"{operstate}\n")
    zeros = {f"{way}_{what}": 0 for way in ("rx", "tx") for what in ("bytes", "errors", "dropped")}
    for file, count in (zeros | counts).items():
        (place / file).write_text(f"{count}\n")


# -- ports ------------------------------------------------------------------------------------------------------------


def test_port_has_state_rate_and_every_counter_in_our_units(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0")
    (port,), left_out, absent = read_ports(str(tmp_path))
    assert (port.name, port.is_active, port.rate_bits_per_s) == ("mlx5_0/1", True, 400_000_000_000)
    # The first two count words of 4 bytes.
    assert [getattr(port, field) for field in COUNTERS] == [4, 8, *range(3, len(COUNTERS) + 1)]
    assert (left_out, absent) == (0, {})


def test_machine_without_cards_says_so(tmp_path: Path) -> None:
    assert read_ports(str(tmp_path / "none")) == ((), 0, {"ports": "no_infiniband_or_roce_card"})


def test_counter_that_a_driver_lacks_is_absent_with_the_reason(tmp_path: Path) -> None:
    place = add_port(tmp_path, "irdma0")
    (place / COUNTERS["cnps_sent"]).unlink()
    (port,), _, absent = read_ports(str(tmp_path))
    assert (port.cnps_sent, absent) == (None, {"cnps_sent": "missing"})


@pytest.mark.parametrize("text", ["", "N/A (no PMA)", "-1", "4 5", "9" * 30, "٣", "\x00\xff"])
def test_what_is_no_count_is_absent(tmp_path: Path, text: str) -> None:
    place = add_port(tmp_path, "mlx5_0")
    (place / COUNTERS["symbol_errors"]).write_text(text)
    (port,), _, absent = read_ports(str(tmp_path))
    assert (port.symbol_errors, absent) == (None, {"symbol_errors": "not_a_count"})


def test_counter_that_cannot_be_read_has_the_systems_reason(tmp_path: Path) -> None:
    place = add_port(tmp_path, "mlx5_0") / COUNTERS["symbol_errors"]
    place.unlink()
    place.mkdir()
    assert read_ports(str(tmp_path)).absent == {"symbol_errors": "is_a_directory"}


def test_port_without_readable_state_and_rate(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", files={"rate": "inf Gb/sec\n"})
    ((port,), _, _) = read_ports(str(tmp_path))
    assert (port.is_active, port.rate_bits_per_s) == (None, None)


@pytest.mark.parametrize("text", ["x Gb/sec", "-1 Gb/sec", "1e99 Gb/sec"])
def test_rate_that_is_no_rate_is_not_known(tmp_path: Path, text: str) -> None:
    add_port(tmp_path, "mlx5_0", files={"rate": text})
    ((port,), _, _) = read_ports(str(tmp_path))
    assert port.rate_bits_per_s is None


def test_ports_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    for number in range(PORTS_MAX):
        add_port(tmp_path, f"mlx5_{number}", files={"state": "4: ACTIVE"})
        add_port(tmp_path, f"mlx5_{number}", "2", files={"state": "1: DOWN"})
    ports = read_ports(str(tmp_path))
    assert (len(ports.samples), ports.left_out) == (PORTS_MAX, PORTS_MAX)
    assert [port.is_active for port in ports.samples[:2]] == [True, False]


@pytest.mark.parametrize(("answers", "read"), [([True, True], 3), ([True, False], 2), ([False], 1)])
def test_ports_that_there_is_no_time_for_are_counted(tmp_path: Path, answers: list[bool], read: int) -> None:
    for number in range(3):
        add_port(tmp_path, f"mlx5_{number}")
    left = iter(answers)
    ports = read_ports(str(tmp_path), lambda: next(left))
    assert (len(ports.samples), ports.left_out, next(left, None)) == (read, 3 - read, None)


def test_names_that_are_no_text_are_reported_with_replacements(tmp_path: Path) -> None:
    add_port(tmp_path, os.fsdecode(b"mlx\xff"))
    add_interface(tmp_path / "net", os.fsdecode(b"eth\xff"), rx_bytes=5)
    node = NodeSample(
        host_ns=0,
        ports=tuple(one for one in read_ports(str(tmp_path)).samples if one.name.startswith("mlx")),
        interfaces=read_interfaces(str(tmp_path / "net")).samples,
    )
    report = Report(sequence=1, host_ns=0, node=node)
    assert (node.ports[0].name, node.interfaces[0].name) == ("mlx\ufffd/1", "eth\ufffd")
    assert decode(encode(report)) == report


# -- interfaces -------------------------------------------------------------------------------------------------------


def test_real_cards_only_with_both_directions_together(tmp_path: Path) -> None:
    add_interface(tmp_path, "lo", rx_bytes=99)
    add_interface(tmp_path, "docker0", is_real=False, rx_bytes=99)
    add_interface(tmp_path, "eth0", rx_bytes=5, tx_bytes=6, rx_errors=1, tx_errors=2, rx_dropped=3, tx_dropped=4)
    assert read_interfaces(str(tmp_path)) == ((InterfaceSample(name="eth0", bytes=11, errors=3, drops=7),), 0)


def test_in_a_container_interfaces_that_carried_data_count(tmp_path: Path) -> None:
    add_interface(tmp_path, "eth0", is_real=False, rx_bytes=5)
    add_interface(tmp_path, "ifb0", is_real=False)
    assert [one.name for one in read_interfaces(str(tmp_path)).samples] == ["eth0"]


def test_interface_without_a_count_is_not_reported(tmp_path: Path) -> None:
    add_interface(tmp_path, "eth0", rx_bytes=5)
    (tmp_path / "eth0" / "statistics" / "rx_errors").unlink()
    assert read_interfaces(str(tmp_path)) == ((), 0)


def test_interfaces_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    for number in range(INTERFACES_MAX + 3):
        add_interface(tmp_path, f"eth{number}", rx_bytes=5)
    interfaces = read_interfaces(str(tmp_path))
    assert (len(interfaces.samples), interfaces.left_out) == (INTERFACES_MAX, 3)


def test_interfaces_down_or_without_traffic_take_no_place(tmp_path: Path) -> None:
    for number in range(INTERFACES_MAX):
        add_interface(tmp_path, f"a{number}", operstate="down", rx_bytes=5)
        add_interface(tmp_path, f"b{number}")
    add_interface(tmp_path, "c0", operstate="unknown", rx_bytes=5)
    add_interface(tmp_path, "c1", rx_bytes=5)
    (tmp_path / "c1" / "operstate").unlink()
    interfaces = read_interfaces(str(tmp_path))
    assert ([one.name for one in interfaces.samples], interfaces.left_out) == (["c0", "c1"], 0)


def test_real_card_is_found_among_many_other_interfaces(tmp_path: Path) -> None:
    for number in range(INTERFACES_READ_MAX + 2):
        add_interface(tmp_path, f"cali{number:03}", is_real=False, rx_bytes=5)
    assert read_interfaces(str(tmp_path)).left_out == 2 + INTERFACES_READ_MAX - INTERFACES_MAX
    add_interface(tmp_path, "eth0", rx_bytes=5)
    interfaces = read_interfaces(str(tmp_path))
    assert ([one.name for one in interfaces.samples], interfaces.left_out) == (["eth0"], 0)
