"""Finds where NCCL's RAS service listens. Apart from its client, so that a rank need not import that."""

from collections.abc import Mapping
from typing import Final

from rankscope.measure.errors import UnavailableError

ADDRESS_VARIABLE: Final = "NCCL_RAS_ADDR"
ENABLE_VARIABLE: Final = "NCCL_RAS_ENABLE"
DEFAULT_ADDRESS: Final = "localhost:28028"
PORT_DIGITS_MAX: Final = 5


def find_ras_address(environment: Mapping[str, str]) -> str:
    """Return where NCCL offers the service with this environment; empty where it is switched off."""
    if environment.get(ENABLE_VARIABLE, "").strip() == "0":
        return ""
    address = environment.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    return address.encode(errors="replace").decode()  # bytes of the environment that are no UTF-8 cannot be written


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [IPV6]:PORT. Raise UnavailableError for anything else.

    >>> parse_address("localhost:28028"), parse_address("[::1]:28028")
    (('localhost', 28028), ('::1', 28028))
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX else 0
    if not host or not 0 < number < 2**16:
        raise UnavailableError(f"{ADDRESS_VARIABLE} is {address!r}, which is not HOST:PORT")
    return host, number
