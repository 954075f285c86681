"""Says what a thread of this process waits for in the kernel, from /proc/self/task/THREAD/syscall: the number of the
system call and its first argument, for many the number of an open file. A process may read this of its own threads,
also in a container without ptrace. Takes 10 us.
"""

import contextlib
import os
import platform
import stat
from typing import Final, NamedTuple

from rankscope.measure.text import to_unicode

BYTES_MAX: Final = 512
NAME_LENGTH_MAX: Final = 64
RUNS: Final = ""
"""What is said of a thread that runs, or waits for a core."""

_X86: Final = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "stat", 6: "stat", 7: "poll", 16: "ioctl", 17: "read",
    18: "write", 19: "read", 20: "write", 23: "select", 35: "sleep", 40: "sendfile", 42: "connect", 43: "accept",
    44: "send", 45: "receive", 46: "send", 47: "receive", 61: "wait for a child process", 72: "fcntl",
    73: "lock of a file", 74: "fsync", 75: "fsync", 82: "rename", 87: "unlink", 162: "sync", 202: "futex",
    217: "listing of a folder", 230: "sleep", 232: "poll", 247: "wait for a child process", 257: "open", 262: "stat",
    270: "select", 271: "poll", 281: "poll", 288: "accept", 295: "read", 326: "copy of a file", 332: "stat",
}  # fmt: skip
_ARM: Final = {
    63: "read", 64: "write", 56: "open", 57: "close", 79: "stat", 73: "poll", 29: "ioctl", 67: "read", 68: "write",
    65: "read", 66: "write", 72: "select", 101: "sleep", 71: "sendfile", 203: "connect", 202: "accept", 206: "send",
    207: "receive", 211: "send", 212: "receive", 260: "wait for a child process", 25: "fcntl", 32: "lock of a file",
    82: "fsync", 83: "fsync", 38: "rename", 35: "unlink", 81: "sync", 98: "futex", 61: "listing of a folder",
    115: "sleep", 22: "poll", 95: "wait for a child process", 242: "accept", 69: "read", 285: "copy of a file",
    291: "stat",
}  # fmt: skip
CALLS: Final = {"x86_64": _X86, "aarch64": _ARM}
"""Words for system calls in which threads wait, by machine and number."""
OF_FILES: Final = frozenset(
    {
        "read", "write", "ioctl", "sendfile", "connect", "accept", "send", "receive", "fcntl", "lock of a file",
        "fsync", "listing of a folder", "close",
    }
)  # fmt: skip
"""Those whose first argument is an open file."""


class KernelWait(NamedTuple):
    """A system call that a thread is in: its number and its first argument."""

    number: int
    argument: int


class KernelWaits:
    """Reader of one thread, by its native id. Closed with `close`."""

    def __init__(self, native_id: int) -> None:
        self._calls = CALLS.get(platform.machine(), {})
        self._file: int | None = None
        if self._calls:
            with contextlib.suppress(OSError):
                self._file = os.open(f"/proc/self/task/{native_id}/syscall", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> KernelWait | None:
        """Return the system call that the thread is in; None where it runs, or that cannot be read."""
        if self._file is None:
            return None
        try:
            return parse_wait(os.pread(self._file, BYTES_MAX, 0))
        except OSError:
            self.close()
            return None

    def describe(self, wait: KernelWait) -> str:
        """Return a wait as text, `read of train.bin (nfs4)`; empty for a call that is not known."""
        call = self._calls.get(wait.number, RUNS)
        if call not in OF_FILES:
            return call
        target = describe_file(wait.argument)
        return f"{call} of {target}" if target else call

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def parse_wait(text: bytes) -> KernelWait | None:
    """Return the call of the text of a `syscall` file; None for a thread that runs, or waits outside of a call.

    >>> parse_wait(b"0 0x3 0x7f 0x1"), parse_wait(b"running"), parse_wait(b"-1 0x7f 0x0")
    (KernelWait(number=0, argument=3), None, None)
    """
    fields = text.split()
    with contextlib.suppress(ValueError, IndexError):
        number = int(fields[0])
        return KernelWait(number, int(fields[1], 16)) if number >= 0 else None
    return None


def describe_file(number: int) -> str:
    """Return what an open file of this process is, `train.bin (nfs4)` or `a socket`; empty where it is closed."""
    try:
        status, name = os.fstat(number), os.readlink(f"/proc/self/fd/{number}")
    except (OSError, OverflowError):
        return ""
    kinds = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "")
    if kind and not name.startswith("/"):
        return kind
    text = to_unicode(name.rpartition("/")[2][:NAME_LENGTH_MAX])
    if not stat.S_ISREG(status.st_mode):
        return to_unicode(name[:NAME_LENGTH_MAX])
    system = find_file_system(status.st_dev)
    return f"{text} ({system})" if system else text


def find_file_system(device: int, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system with this device number, `nfs4`; empty where it is not mounted here."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError, ValueError), open(mounts, encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split()
            if len(fields) > 2 and fields[2] == wanted:  # noqa: PLR2004 - id, parent, device
                return fields[fields.index("-") + 1]
    return ""
