"""Reads the counters of the machine's network from sysfs: InfiniBand and RoCE ports, and network interfaces.

    /sys/class/infiniband/CARD/ports/N/         state, rate
                                       counters/      of the port itself; the driver asks the card's firmware for each
                                       hw_counters/   of the transport; which there are differs between drivers
    /sys/class/net/NAME/statistics/    errors and drops; a real card has a link `device` beside it

All are readable without privileges. In a container the InfiniBand ports are those of the host (or of the card's virtual
function), the interfaces its own. Not read are the counters of switches and of other machines.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from rankscope.measure.bounds import SHORT_NAME_LENGTH_MAX
from rankscope.measure.records import InterfaceSample, PortSample

PORTS_MAX: Final = 16
"""Ports that are read. A machine with eight GPUs has eight to ten cards of one port, or of two."""
INTERFACES_MAX: Final = 8
LISTED_MAX: Final = 1024
"""Names of a folder that are looked at, in order: a host of many containers has hundreds of interfaces."""
INTERFACES_READ_MAX: Final = 64
"""Interfaces whose counts are read, to find those that carry data."""
FILE_BYTES_MAX: Final = 4096
COUNT_MAX: Final = 2**62
"""The largest count that a message holds; a larger one is not a count."""

MISSING: Final = "missing"
NO_PORTS: Final = "no_infiniband_or_roce_card"
NO_INTERFACES: Final = "no_network_interface"

COUNTERS: Final[Mapping[str, str]] = {
    "tx_bytes": "counters/port_xmit_data",
    "rx_bytes": "counters/port_rcv_data",
    "xmit_wait": "counters/port_xmit_wait",
    "symbol_errors": "counters/symbol_error",
    "receive_errors": "counters/port_rcv_errors",
    "link_recoveries": "counters/link_error_recovery",
    "link_downs": "counters/link_downed",
    "receiver_not_ready": "hw_counters/rnr_nak_retry_err",
    "out_of_sequence": "hw_counters/out_of_sequence",
    "adaptive_retransmissions": "hw_counters/roce_adp_retrans",
    "ack_timeouts": "hw_counters/local_ack_timeout_err",
    "cnps_sent": "hw_counters/np_cnp_sent",
    "cnps_handled": "hw_counters/rp_cnp_handled",
}
"""File by field of PortSample. The names of hw_counters are those of NVIDIA's mlx5 driver."""
WORDS: Final = frozenset({"tx_bytes", "rx_bytes"})
"""Fields that the card counts in words of 4 bytes (InfiniBand specification, PortXmitData)."""
BYTES_PER_WORD: Final = 4
BITS_PER_GIGABIT: Final = 1000**3


class Ports(NamedTuple):
    """The ports that were read, how many were not, and the reason of each field that one lacks."""

    samples: tuple[PortSample, ...]
    left_out: int
    absent: dict[str, str]


class Interfaces(NamedTuple):
    """The interfaces that carry data, at most INTERFACES_MAX, and how many were not read or are beyond that."""

    samples: tuple[InterfaceSample, ...]
    left_out: int


def read_ports(folder: str, has_time: Callable[[], bool] = lambda: True) -> Ports:
    """Return the state and the counters of all ports; `folder` is like /sys/class/infiniband. Raises nothing.

    Begins no further port after the first one when `has_time` is False: a card may be slow to answer.
    """
    found = [
        (_to_name(f"{card}/{port}"), os.path.join(folder, card, "ports", port))
        for card in _list(folder)
        for port in _list(os.path.join(folder, card, "ports"))
    ]
    absent: dict[str, str] = {} if found else {"ports": NO_PORTS}
    samples: list[PortSample] = []
    for name, place in found[:PORTS_MAX]:
        if samples and not has_time():
            break
        samples.append(_read_port(name, place, absent))
    return Ports(tuple(samples), len(found) - len(samples), absent)


def _read_port(name: str, folder: str, absent: dict[str, str]) -> PortSample:
    values: dict[str, int] = {}
    for field, file in COUNTERS.items():
        text, reason = read_text(os.path.join(folder, file))
        count = None if text is None else parse_count(text)
        if count is None:
            absent.setdefault(field, reason or "not_a_count")
        else:
            values[field] = min(COUNT_MAX, count * BYTES_PER_WORD) if field in WORDS else count
    return PortSample(
        name=name,
        is_active=parse_state(read_text(os.path.join(folder, "state"))[0]),
        rate_bits_per_s=parse_rate(read_text(os.path.join(folder, "rate"))[0]),
        **values,
    )


def parse_state(text: str | None) -> bool | None:
    """Return whether a port's `state` is the one in which it carries data; None if it is not known.

    >>> parse_state("4: ACTIVE"), parse_state("1: DOWN"), parse_state(None)
    (True, False, None)
    """
    return None if not text else text.split(":")[0].strip() == "4"


def parse_rate(text: str | None) -> int | None:
    """Return a port's `rate` in bits per second; None if it is not known.

    >>> parse_rate("400 Gb/sec (4X NDR)"), parse_rate("2.5 Gb/sec (1X SDR)"), parse_rate("fast")
    (400000000000, 2500000000, None)
    """
    number, _, unit = (text or "").partition(" ")
    if not unit.startswith("Gb/sec"):
        return None
    try:
        rate = round(float(number) * BITS_PER_GIGABIT)
    except (ValueError, OverflowError):
        return None
    return rate if 0 <= rate <= COUNT_MAX else None


def read_interfaces(folder: str) -> Interfaces:
    """Return the counts of the real network cards that are up and have carried data; `folder` is like /sys/class/net.
    Where no interface is a real card, as in most containers, those of all interfaces but the loopback. Raises nothing.
    """
    names = [name for name in _list(folder) if name != "lo"]
    wanted = [name for name in names if os.path.exists(os.path.join(folder, name, "device"))] or names
    read = [_read_interface(folder, name) for name in wanted[:INTERFACES_READ_MAX] if _is_up(folder, name)]
    used = [sample for sample in read if sample is not None and sample.bytes]
    not_read = max(0, len(wanted) - INTERFACES_READ_MAX)
    return Interfaces(tuple(used[:INTERFACES_MAX]), not_read + max(0, len(used) - INTERFACES_MAX))


def _is_up(folder: str, name: str) -> bool:
    """Return whether an interface may carry data; True where its driver does not know."""
    return read_text(os.path.join(folder, name, "operstate"))[0] in {"up", "unknown", None}


def _read_interface(folder: str, name: str) -> InterfaceSample | None:
    """Return None where a count cannot be read."""
    place = os.path.join(folder, name, "statistics")
    sums = (_add_up(os.path.join(place, f"{way}_{what}") for way in ("rx", "tx")) for what in _INTERFACE_COUNTS)
    size, errors, drops = sums
    if size is None or errors is None or drops is None:
        return None
    return InterfaceSample(name=_to_name(name), bytes=size, errors=errors, drops=drops)


_INTERFACE_COUNTS: Final = ("bytes", "errors", "dropped")


def _add_up(files: Iterable[str]) -> int | None:
    counts = [None if text is None else parse_count(text) for text, _ in map(read_text, files)]
    known = [count for count in counts if count is not None]
    return min(COUNT_MAX, sum(known)) if len(known) == len(counts) else None


def parse_count(text: str) -> int | None:
    """Return a count; None for anything else, such as a negative number or one beyond COUNT_MAX.

    >>> parse_count("41"), parse_count("-1"), parse_count("N/A (no PMA)")
    (41, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(COUNT_MAX)) else None


def read_text(path: str) -> tuple[str | None, str]:
    """Return the begin of a small file without white space around it, or None and the reason."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(FILE_BYTES_MAX) or b"").decode(errors="replace").strip(), ""
    except FileNotFoundError:
        return None, MISSING
    except OSError as error:
        return None, (error.strerror or type(error).__name__).lower().replace(" ", "_")


def _list(folder: str) -> list[str]:
    """Return the first LISTED_MAX names in a folder in order; empty where there is none."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))[:LISTED_MAX]
    return []


def _to_name(listed: str) -> str:
    r"""Return a name of a file as text that a message can hold: bytes that are not UTF-8 are replaced.

    >>> _to_name("eth0"), _to_name("eth\udcff")
    ('eth0', 'eth�')
    """
    return os.fsencode(listed).decode(errors="replace")[:SHORT_NAME_LENGTH_MAX]
