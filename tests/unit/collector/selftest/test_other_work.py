"""CPU time of other processes beside that of a training of the selftest."""

import subprocess
import sys

import pytest

from rankscope.collector.selftest.other_work import OtherWork, read_machine_cpu_s, read_own_cpu_s

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
"""A child that computes for 0.3 s, says so, and waits."""


def work_of(machine_s: list[float], own_s: list[dict[int, float]]) -> OtherWork:
    machine, own = iter(machine_s), iter(own_s)
    return OtherWork(lambda: next(machine), lambda: next(own))


def test_own_processes_are_no_others_even_after_their_end() -> None:
    # The machine worked 20 s: 2 s of process 1, 6 s of process 2, which has ended by the last reading; 12 s in 10 s.
    work = work_of([50.0, 70.0], [{1: 1.0}, {1: 2.0, 2: 6.0}, {1: 3.0}])
    work.update()
    work.update()
    assert work.measure_cores(10.0) == pytest.approx(1.2)


def test_others_never_use_less_than_nothing() -> None:
    assert work_of([50.0, 50.0], [{1: 1.0}, {1: 3.0}]).measure_cores(10.0) == 0.0
    assert work_of([50.0, 51.0], [{1: 1.0}]).measure_cores(0.0) == 0.0


def test_children_count_as_own() -> None:
    machine_s, own_s = read_machine_cpu_s(), read_own_cpu_s()
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        later_s = read_own_cpu_s()
        assert child.pid not in own_s
        assert later_s[child.pid] >= 0.3 - 0.02  # in ticks of 0.01 s, user and system each
        assert read_machine_cpu_s() - machine_s >= 0.3 - 0.05
        child.communicate("\n")
