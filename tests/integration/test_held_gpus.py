"""GPUs that are held and do nothing, from NVML to the terminal: a real relay with the real pynvml on our own library
(tests/nvml_stand_in), a real collector, and processes of the test that hold the GPUs. The test decides what is true.
"""

import contextlib
import getpass
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.runs.held_gpus import HeldGpus, ListedGpu
from rankscope.measure.messages import Ack, Goodbye, Report
from rankscope.measure.records import DeviceSample, Totals
from tests.integration.relaying import relaying
from tests.integration.serving import Served, serving, wait_for
from tests.integration.wire_peer import Peer, connected
from tests.nvml_stand_in import compile_nvml
from tests.nvml_stand_in.sampling import MIB, STRAINED

IDLE_AFTER_S = 1.0
UNTOLD = "not-to-be-told"
ME = getpass.getuser()


@contextlib.contextmanager
def holding(job: str) -> Iterator[int]:
    """A process with a batch job in its environment, beside what nobody else is to know; its id."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", UNTOLD],
        stdin=subprocess.PIPE, env={**os.environ, "SLURM_JOB_ID": job, "API_TOKEN": UNTOLD},
    )  # fmt: skip
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


class Machine:
    """A machine with the three boards of the stand-in, a relay on it, and its collector."""

    def __init__(self, served: Served, relay: str, held: Path, jobs: Path) -> None:
        self.served, self.relay = served, relay
        self._held, self._jobs = held, jobs

    def hold(self, *lines: str) -> None:
        """Say what NVML has from now on: `process INDEX PID BYTES`, `utilization INDEX PERCENT`."""
        whole = self._held.with_suffix(".new")
        whole.write_text("".join(f"{line}\n" for line in lines))
        whole.rename(self._held)

    def give(self, index: int, job: str) -> None:
        """Give a GPU to a batch job of this user, as a prolog does."""
        (self._jobs / str(index)).write_text(f"{job} {os.getuid()}\n")

    def wait_for(self, is_so: Callable[[HeldGpus], bool]) -> HeldGpus:
        """The first answer of the API for which it is so."""
        seen: list[object] = [None]

        def look() -> HeldGpus | None:
            with contextlib.suppress(OSError):  # 404 until the relay has told
                held = msgspec.json.decode(self.served.read("/api/v1/gpus"), type=HeldGpus)
                seen[0] = held
                return held if is_so(held) else None
            return None

        return wait_for(look, lambda: f"the GPUs are {seen[0]}", 60)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of our library."""
    return compile_nvml(tmp_path_factory.mktemp("driver")).parent


@contextlib.contextmanager
def machine(driver: Path, tmp_path: Path) -> Iterator[Machine]:
    held, jobs = tmp_path / "held", tmp_path / "jobs"
    held.touch()
    jobs.mkdir()
    environment = {
        "LD_LIBRARY_PATH": str(driver), "STAND_IN_PROCESSES_FILE": str(held),
        "RANKSCOPE_RELAY_CONSTANT_GPU_INTERVAL_S": "0.1",
    }  # fmt: skip
    with (
        serving("--gpu-idle-after-s", str(IDLE_AFTER_S)) as served,
        relaying(served.endpoint, "--name", "node-7", "--gpu-jobs", str(jobs), environment=environment) as relay,
    ):
        yield Machine(served, relay.endpoint, held, jobs)


def choose(held: HeldGpus, index: int) -> ListedGpu:
    (one,) = [one for one in held.listed if one.index == index]
    return one


def steps_of(peer: Peer, steps: int) -> None:
    """Report that many steps in all, on the first board."""
    peer.sequence += 1
    device = DeviceSample(host_ns=1, uuid=STRAINED, model="H")
    peer.send(Report(sequence=peer.sequence, host_ns=1, devices=(device,), totals=Totals(steps=steps)))
    while peer.await_answer(Ack).through < peer.sequence:
        pass


def test_an_idle_gpu_is_told_with_who_holds_it_and_nothing_else(
    driver: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Board 0: a process of job 4711 without a kernel. Board 1: given to job 4712, of which there is no process. Board
    2: in MIG mode, so its utilization is not known, with memory in use.
    """
    with machine(driver, tmp_path) as here, holding("4711") as pid:
        here.hold(f"process 0 {pid} {60_000 * MIB}", "utilization 0 0")
        here.give(1, "4712")
        held = here.wait_for(lambda held: held.states["idle"] == 2)
        assert held.states == {"free": 0, "watched": 0, "watched_idle": 0, "in_use": 0, "idle": 2, "unknown": 1}
        assert {(one.user, one.job, one.gpus) for one in held.owners} == {(ME, "4711", 1), (ME, "4712", 1)}
        first, second = choose(held, 0), choose(held, 1)
        assert (first.node, first.uuid, first.pid, first.processes) == ("node-7", STRAINED, pid, 1)
        assert first.program.startswith("python")
        assert first.memory_used_bytes == 60_000 * MIB
        assert first.held_s >= first.idle_s >= IDLE_AFTER_S
        assert (second.program, second.processes) == ("", 0)

        assert main(["nodes", "--gpus", "--url", here.served.url]) == 0
        said = capsys.readouterr().out
        assert [line.split()[:2] for line in said.splitlines()[1:3]] == [["node-7", "0"], ["node-7", "1"]]
        assert "2 of 3 GPUs held and idle" in said
        page = here.served.wait_for_metrics('rankscope_gpus{state="idle"} 2.0', 'rankscope_gpus{state="unknown"} 1.0')
        assert f'rankscope_idle_gpus{{batch_job="4711",user="{ME}"}} 1.0' in page
        assert UNTOLD not in said + page + str(here.served.read("/api/v1/gpus"))


def test_a_gpu_that_works_or_is_given_back_is_not_idle(driver: Path, tmp_path: Path) -> None:
    with machine(driver, tmp_path) as here, holding("4711") as pid, holding("4713") as other:
        here.hold(f"process 1 {pid} 0")
        assert choose(here.wait_for(lambda held: held.states["idle"] == 1), 1).memory_used_bytes == 0
        here.hold(f"process 1 {pid} 0", "utilization 1 3")
        here.wait_for(lambda held: held.states["idle"] == 0 and held.states["in_use"] >= 1)
        here.hold(f"process 1 {other} 0")  # somebody else: its idle time begins now
        again = choose(here.wait_for(lambda held: held.states["idle"] == 1), 1)
        assert (again.job, again.pid) == ("4713", other)
        here.hold()
        here.wait_for(lambda held: held.states["free"] == 1)


def test_a_rank_between_steps_is_watched_and_not_idle(driver: Path, tmp_path: Path) -> None:
    with (
        machine(driver, tmp_path) as here,
        holding("4711") as pid,
        connected(here.relay, "boot-of-rank-0") as peer,
    ):
        here.hold(f"process 0 {pid} {60_000 * MIB}", "utilization 0 0")
        peer.rejoin()
        steps_of(peer, 7)
        held = here.wait_for(lambda held: held.states["watched_idle"] == 1)
        one = choose(held, 0)
        assert (held.states["idle"], one.state, one.run, one.rank) == (0, "watched_idle", "good", 0)
        assert one.step_age_s is not None
        assert one.step_age_s >= IDLE_AFTER_S
        here.hold(f"process 0 {pid} {60_000 * MIB}", "utilization 0 80")
        steps_of(peer, 8)
        here.wait_for(lambda held: held.states["watched"] == 1)
        here.hold(f"process 0 {pid} {60_000 * MIB}", "utilization 0 0")
        peer.send(Goodbye(sequence=peer.sequence + 1, reason="finished"))  # and the process stays, with its memory
        assert choose(here.wait_for(lambda held: held.states["idle"] == 1), 0).pid == pid


def test_a_machine_without_a_driver_says_why(tmp_path: Path) -> None:
    with (
        serving() as served,
        relaying(
            served.endpoint, environment={"RANKSCOPE_RELAY_CONSTANT_GPU_INTERVAL_S": "0.1", "LD_LIBRARY_PATH": ""}
        ),
    ):
        here = Machine(served, "", tmp_path / "held", tmp_path)
        held = here.wait_for(lambda held: bool(held.unread))
        assert held.unread == {"library_not_found": 1}
        assert sum(held.states.values()) == 0
