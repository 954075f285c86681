"""A machine of its own for a rank: a network namespace with one cable to this one, which a test can cut.

Needs root and iproute2. What is made has a random name and address, so that tests can run side by side, and goes with
the block.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator


class Cable:
    """The two ends: `here` is this machine's address on it; `prefix` starts a program on the other side."""

    def __init__(self) -> None:
        token = secrets.token_hex(3)
        self._space, self._near, self._far = f"rankscope-{token}", f"rs{token}a", f"rs{token}b"
        net = secrets.randbelow(1 << 14)  # a /30 in 10.211.0.0/16
        base = f"10.211.{net >> 6}."
        self.here, self._there = f"{base}{(net & 63) * 4 + 1}", f"{base}{(net & 63) * 4 + 2}"
        self.prefix = ("ip", "netns", "exec", self._space)

    def lay(self) -> None:
        """Connect the two. Raises CalledProcessError where that is not allowed."""
        _run("ip", "netns", "add", self._space)
        _run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self._space)
        _run("ip", "addr", "add", f"{self.here}/30", "dev", self._near)
        _run("ip", "link", "set", self._near, "up")
        _run(*self.prefix, "ip", "addr", "add", f"{self._there}/30", "dev", self._far)
        _run(*self.prefix, "ip", "link", "set", self._far, "up")

    def cut(self) -> None:
        """From here on nothing goes through, and nobody is told."""
        _run("ip", "link", "set", self._near, "down")

    def mend(self) -> None:
        """It goes through again."""
        _run("ip", "link", "set", self._near, "up")

    def remove(self) -> None:
        """Leave nothing behind."""
        for command in (("ip", "link", "del", self._near), ("ip", "netns", "del", self._space)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run(*command)


def why_none() -> str:
    """Why no namespace can be made here; empty where one can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    cable = Cable()
    try:
        cable.lay()
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.strip()}"
    finally:
        cable.remove()
    return ""


@contextlib.contextmanager
def laid() -> Iterator[Cable]:
    """A cable for the block."""
    cable = Cable()
    try:
        cable.lay()
        yield cable
    finally:
        cable.remove()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=500)
