"""The kinds of faults that need a GPU: matrix products beside the training, and a lowered power limit."""

import contextlib
import os
import select
import subprocess
import sys
from typing import Any, Final

from rankscope.agent.fault_spec import KINDS, FaultSpec
from rankscope.agent.faults.power_cap import HOLD_S_MAX, OK, describe_cure
from rankscope.agent.guard import log_line
from rankscope.agent.identity import drop_rank_variables
from rankscope.agent.sample.torch_device import may_have_device, read_torch_device
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError

MATRIX_SIZE: Final = 4096
"""Rows and columns: enough for every multiprocessor, in three matrices of 32 MiB of bfloat16."""
CALIBRATED: Final = 10
"""Products whose duration is measured, after as many that are not."""
HELPER_S_MAX: Final = 20.0
"""How long the helper may take to lower a limit, or to restore it: it imports Python and NVML."""
NO_GPU: Final = "this rank had not used an NVIDIA GPU when the fault began"

NO_ANSWER: Final = f"the helper process that asks NVML ended without an answer, or gave none in {HELPER_S_MAX:.0f} s"


def find_refusal(spec: FaultSpec) -> str:
    """Return why a fault that needs a GPU cannot be injected here; empty if it may be. CUDA is not touched."""
    if not KINDS[spec.kind].needs_gpu:
        return ""
    if spec.kind == "power_cap":
        return _ask_helper()
    return "" if may_have_device() else "this torch is built without support for GPUs"


class MatmulBurn:
    """Matrix products on a stream of its own, of a higher priority than the training's, for `ms` of the GPU's time in
    each step. The host does not wait for them: a burst is left out while the last one still runs.
    """

    def __init__(self, ms: int, torch: Any) -> None:
        self._ms = ms
        self._torch = torch
        self._stream: Any = None
        self._matrices: tuple[Any, ...] = ()
        self._count = 0
        self._last: Any = None

    def act(self) -> None:
        """Launch the products of a step. Raises UnavailableError on a rank without a GPU."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            raise UnavailableError(NO_GPU)
        if cuda.is_current_stream_capturing() or (self._last is not None and not self._last.query()):
            return
        if self._stream is None:
            self._calibrate()
        with cuda.stream(self._stream), self._torch.no_grad():
            self._multiply(self._count)
            self._last = cuda.Event()
            self._last.record()

    def end(self) -> None:
        """Free the matrices. What was launched still runs."""
        self._matrices, self._stream, self._last = (), None, None

    def _calibrate(self) -> None:
        cuda = self._torch.cuda
        self._stream = cuda.Stream(priority=-1)
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(self._stream), self._torch.no_grad():
            size, dtype = (MATRIX_SIZE, MATRIX_SIZE), self._torch.bfloat16
            self._matrices = tuple(self._torch.zeros(size, dtype=dtype, device="cuda") for _ in range(3))
            self._multiply(CALIBRATED)
            begin.record()
            self._multiply(CALIBRATED)
            end.record()
        end.synchronize()
        self._count = max(1, round(self._ms * CALIBRATED / max(begin.elapsed_time(end), 1e-3)))

    def _multiply(self, count: int) -> None:
        left, right, out = self._matrices
        for _ in range(count):
            self._torch.mm(left, right, out=out)


class PowerCap:
    """The power limit of the GPU of this rank, lowered to the lowest that it allows, by a helper that restores it even
    if this process is killed (power_cap.py).
    """

    def __init__(self, uuid: str | None = None) -> None:
        self._uuid = uuid
        self._helper: subprocess.Popen[bytes] | None = None
        self._before = 0
        self._pid = os.getpid()

    def act(self) -> None:
        """Lower the limit; later calls do nothing. Raises UnavailableError with the reason where it stays."""
        if self._helper is not None:
            return
        uuid = self._uuid or self._read_uuid()
        command = build_child_command(sys.executable, "rankscope.agent.faults.power_cap", "hold", uuid, str(self._pid))
        pipe = subprocess.PIPE
        self._helper = _start(command, stdin=pipe)
        words = _read_line(self._helper).split()
        if words[:1] != [OK]:
            self.end()
            raise UnavailableError(f"the power limit of {uuid} was not lowered: {' '.join(words) or NO_ANSWER}")
        self._uuid, self._before = uuid, int(words[1])
        log_line(
            f"the power limit of {uuid} is lowered from {int(words[1]) // 1_000} to {int(words[2]) // 1_000} W until "
            f"the fault or this process ends, for {HOLD_S_MAX / 60:.0f} minutes at most; to restore it by hand, as "
            f"root: {describe_cure(uuid, self._before)}"
        )

    def end(self) -> None:
        """Let the helper restore the limit, and log it if it did not."""
        helper, self._helper = self._helper, None
        if helper is None or helper.stdin is None or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):  # it has ended
            helper.stdin.write(b".")
            helper.stdin.close()
        try:
            status = helper.wait(HELPER_S_MAX)
        except subprocess.TimeoutExpired:
            status = -1
        if status != 0 and self._before and self._uuid is not None:
            log_line(f"the power limit was not restored: run {describe_cure(self._uuid, self._before)} as root")

    @staticmethod
    def _read_uuid() -> str:
        device = read_torch_device()
        if device is None or device.uuid is None:
            raise UnavailableError(NO_GPU)
        return device.uuid


def _ask_helper() -> str:
    """Return why NVML lets this process change no power limit; empty if it does."""
    command = build_child_command(sys.executable, "rankscope.agent.faults.power_cap", "check")
    with _start(command, stdin=subprocess.DEVNULL) as helper:
        said = _read_line(helper)
        if said != OK:
            helper.kill()
    return "" if said == OK else said or NO_ANSWER


def _start(command: list[str], *, stdin: int) -> "subprocess.Popen[bytes]":
    environment = drop_rank_variables(os.environ)
    return subprocess.Popen(  # noqa: S603 - this interpreter, and code of ours
        command, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _read_line(helper: "subprocess.Popen[bytes]") -> str:
    """Return the first line that the helper prints; empty if it ends, or takes longer than HELPER_S_MAX."""
    if helper.stdout is None:
        return ""
    with helper.stdout:
        poll = select.poll()  # `select` refuses numbers of files from 1024 on
        poll.register(helper.stdout, select.POLLIN)
        if not poll.poll(HELPER_S_MAX * 1e3):
            return ""
        return helper.stdout.readline().decode(errors="replace").strip()
