"""Identify this machine. Besides the system clock this is the one outside fact that both programs must agree on."""

import os


def read_machine_id() -> str:
    """Return an id of the booted machine and of this process's pid namespace; empty if unknown.

    Two processes that read the same can see each other's process ids.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
