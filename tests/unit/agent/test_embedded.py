"""Tests of the embedded collector without a child process: its command, its output, the rendezvous."""

import os
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from rankscope.agent.embedded import Rendezvous, _read_line
from rankscope.agent.identity import read_identity
from rankscope.agent.shutdown.torch_threads import TorchCallGate

LONG_S = 60.0
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}

# -- its answer -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[IO[str], IO[str]]]:
    """A child's stdout as the parent reads it, and the child's end of it."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as parent, os.fdopen(writing, "w") as child:
        yield parent, child


def test_line_of_the_child_is_read(pipe: tuple[IO[str], IO[str]]) -> None:
    parent, child = pipe
    print('{"endpoint": "tcp://127.0.0.1:5"}', file=child, flush=True)
    assert _read_line(parent, LONG_S) == '{"endpoint": "tcp://127.0.0.1:5"}\n'
    assert parent.closed, "nothing else is read from it"


def test_a_line_that_comes_later_is_waited_for(pipe: tuple[IO[str], IO[str]]) -> None:
    parent, child = pipe
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(_read_line(parent, LONG_S)))
    reader.start()
    print("{}", file=child, flush=True)
    reader.join(LONG_S)
    assert lines == ["{}\n"]


def test_what_python_prints_at_its_start_is_no_answer(pipe: tuple[IO[str], IO[str]]) -> None:
    parent, child = pipe
    print('welcome to this cluster\n{"endpoint": "tcp://127.0.0.1:5"}', file=child, flush=True)
    assert _read_line(parent, LONG_S) == '{"endpoint": "tcp://127.0.0.1:5"}\n'


def test_silent_child_is_given_up_after_the_timeout(pipe: tuple[IO[str], IO[str]]) -> None:
    parent, _ = pipe
    with pytest.raises(OSError, match="no answer in 0 s"):
        _read_line(parent, 0.0)


def test_child_that_ends_without_output_raises_at_once(pipe: tuple[IO[str], IO[str]]) -> None:
    parent, child = pipe
    child.close()
    with pytest.raises(OSError, match="ended before it printed its address"):
        _read_line(parent, LONG_S)


def test_a_child_without_a_pipe_has_no_answer() -> None:
    with pytest.raises(OSError, match="no answer"):
        _read_line(None, 0.0)


# -- the meeting place ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_out", "expected"), [([], True), (["MASTER_ADDR"], False), (["MASTER_PORT"], False), (list(TORCHRUN), False)]
)
def test_rendezvous_needs_the_address_of_a_store(left_out: list[str], expected: bool) -> None:
    environment = {name: value for name, value in TORCHRUN.items() if name not in left_out}
    rendezvous = Rendezvous(read_identity(environment, run="r"), environment, threading.Event(), TorchCallGate())
    assert rendezvous.is_possible is expected


def test_a_port_that_is_no_number_is_no_meeting_place() -> None:
    environment = {**TORCHRUN, "MASTER_PORT": "auto"}
    assert not Rendezvous(
        read_identity(environment, run="r"), environment, threading.Event(), TorchCallGate()
    ).is_possible


def test_ending_process_stops_waiting_for_the_store() -> None:
    stopping = threading.Event()
    stopping.set()
    assert Rendezvous(read_identity(TORCHRUN, run="r"), TORCHRUN, stopping, TorchCallGate()).find() is None
