"""The sockets of a process, by every psutil that the package runs with."""

from typing import Any

import psutil


def list_connections(process: psutil.Process, kind: str = "tcp") -> list[Any]:
    """Return the addresses that `process` listens at and is connected to; psutil 6 renamed the method."""
    name = "net_connections" if hasattr(process, "net_connections") else "connections"
    connections: list[Any] = getattr(process, name)(kind)
    return connections
