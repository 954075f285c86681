"""Spilled reports of rank processes, for tests."""

import subprocess
import sys
from pathlib import Path

from rankscope.agent.reporting.spill import Spill
from rankscope.measure.codec import encode
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.messages import Hello
from rankscope.uplink.resend_buffer import HeldFrame

BOOT_ID = "boot-of-0"
RUN = "bert"


def hello_of(boot_id: str = BOOT_ID, run: str = RUN) -> Hello:
    identity = RankIdentity(
        run=RunId(run), rank=0, local_rank=0, world_size=2, node="n0", restart_count=0, boot_id=BootId(boot_id), pid=7
    )
    return Hello(identity=identity, first_sequence=1, host_ns=5, wall_ns=6, report_interval_ns=7)


def spill_in(folder: Path, boot_id: str = BOOT_ID, bytes_max: int = 1 << 20, run: str = RUN) -> Spill:
    return Spill(str(folder), boot_id, lambda: encode(hello_of(boot_id, run)), bytes_max)


def frame_of(sequence: int, size: int = 10) -> HeldFrame:
    return HeldFrame(sequence, b"%10d" % sequence * (size // 10), 2)


def hold_lock(path: Path) -> "subprocess.Popen[bytes]":
    """Another process that holds the lock until it is killed; it holds it when this returns."""
    program = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder
