"""Tests of taking the rank from the process group if no launcher has set it."""

import contextlib
import pickle
import signal
from collections.abc import Iterator, Mapping

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore
from torch.distributed import device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401 - its import makes the backend "fake"

from rankscope.agent.deferred_start import describe_group, has_peer_processes, is_in_group, watch_for_group

RANK, WORLD_SIZE = 3, 8
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
PLACED = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def join() -> None:
    """A group of eight without the other seven."""
    dist.init_process_group("fake", store=HashStore(), rank=RANK, world_size=WORLD_SIZE)


@contextlib.contextmanager
def grouped() -> Iterator[None]:
    join()
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, {}),
        (SLURM, PLACED),
        (OPEN_MPI, PLACED),
        (HYDRA, PLACED),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1,1"}, {"LOCAL_RANK": "1"}),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "3,5"}, {"LOCAL_RANK": "1"}),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, {}),
        ({**SLURM, "LOCAL_RANK": "2"}, {}),
        ({"MASTER_ADDR": "127.0.0.1"}, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}),
        ({"MASTER_ADDR": "node-7"}, {}),
    ],
)
def test_rank_is_from_the_group_and_place_from_the_launcher(
    environment: Mapping[str, str], place: Mapping[str, str]
) -> None:
    with grouped():
        assert describe_group(environment) == {"RANK": "3", "WORLD_SIZE": "8", **place}


def test_error_of_a_script_handler_amid_the_start_is_the_scripts() -> None:
    def handle(_number: int, _frame: object) -> None:
        raise TimeoutError("the script's")

    before = signal.signal(signal.SIGUSR1, handle)
    watch_for_group(lambda _launcher: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(TimeoutError, match="the script's"):
            join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        dist.destroy_process_group()


def test_where_the_members_met_is_known_from_their_store() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("fake", store=PrefixStore("one", store), rank=0, world_size=2)
    try:
        told = describe_group({"MASTER_ADDR": "node-7", "MASTER_PORT": "1"})
    finally:
        dist.destroy_process_group()
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", str(store.port))
    assert (told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("0", "2")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        (SLURM, True),
        (OPEN_MPI, True),
        (HYDRA, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, False),  # the batch script itself
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, False),
    ],
)
def test_process_started_with_others_has_peers(environment: Mapping[str, str], expected: bool) -> None:
    assert has_peer_processes(environment) is expected


def test_first_group_is_notified_once_and_patches_removed() -> None:
    owners = (dist, device_mesh, distributed_c10d)  # init_device_mesh has a name of its own for it
    original = dist.init_process_group
    told: list[dict[str, str]] = []
    watch_for_group(told.append)
    watching = [vars(owner)["init_process_group"] for owner in owners]
    assert original not in watching
    assert {one.__name__ for one in watching} == {"init_process_group"}
    with pytest.raises(RuntimeError, match="nowhere"):  # as it would without us, and it is watched for still
        dist.init_process_group("gloo", init_method="nowhere://", rank=RANK, world_size=WORLD_SIZE)
    assert not is_in_group()
    for _ in range(2):
        with grouped():
            assert is_in_group()
    assert told == [{"RANK": "3", "WORLD_SIZE": "8"}]
    assert [vars(owner)["init_process_group"] for owner in owners] == [original] * 3


def test_function_can_be_pickled_while_it_is_watched() -> None:
    watch_for_group(lambda _: None)
    for owner in (dist, device_mesh, distributed_c10d):
        assert pickle.loads(pickle.dumps(owner.init_process_group)) is dist.init_process_group  # noqa: S301
    with grouped():
        assert is_in_group()


def test_error_in_the_callback_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    watch_for_group(lambda _: 1 // 0)
    with grouped():
        assert is_in_group()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("rankscope: not started (ZeroDivisionError: integer division or modulo by zero, at ")
    assert said.endswith("); training continues without it")


def test_what_comes_before_the_first_group_is_done_before_it() -> None:
    was_in_group: list[bool] = []
    watch_for_group(lambda _: was_in_group.append(is_in_group()), lambda: was_in_group.append(is_in_group()))
    with grouped():
        assert was_in_group == [False, True]


def test_error_before_the_first_group_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    watch_for_group(lambda _: None, lambda: 1 // 0)
    with grouped():
        assert is_in_group()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(
        "rankscope: collectives are not timed (ZeroDivisionError: integer division or modulo by zero, "
    )
    assert said.endswith("); training continues")
