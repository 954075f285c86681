"""Launch: when torch's timing of NCCL's collectives is switched on."""

import os
import secrets
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401 - its import makes the backend "fake"

from rankscope.agent import launch
from rankscope.agent.config import MEASURED, ON
from rankscope.agent.profiler.nccl_timing import SET_VARIABLE, TIMING_VARIABLE


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TIMING_VARIABLE, SET_VARIABLE):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)


@pytest.fixture
def in_group() -> Iterator[None]:
    dist.init_process_group("fake", store=HashStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def call_backend(name: str) -> None:
    """Have torch's only group be of that backend, as far as its description says."""
    pg_map = dist.distributed_c10d._world.pg_map
    ((group, (_, store)),) = pg_map.items()
    pg_map[group] = name, store


@pytest.mark.usefixtures("unset")
def test_variable_is_set_before_the_first_group(capsys: pytest.CaptureFixture[str]) -> None:
    launch._enable_timing(ON, {})
    assert (os.environ[TIMING_VARIABLE], capsys.readouterr().err) == ("1", "")


@pytest.mark.usefixtures("unset", "in_group")
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_after_a_group_of_nccl_it_is_said_to_be_too_late(capsys: pytest.CaptureFixture[str], backend: str) -> None:
    call_backend(backend)
    # A line is logged once in a run on a machine: also by another process that runs this test at the same time.
    launch._enable_timing(ON, {"TORCHELASTIC_RUN_ID": secrets.token_hex(8), "WORLD_SIZE": "2"})
    assert TIMING_VARIABLE not in os.environ
    assert capsys.readouterr().err.startswith(
        "rankscope: NCCL's collectives are not timed: the agent was started after"
    )


@pytest.mark.usefixtures("unset", "in_group")
def test_measured_timing_is_never_too_late(capsys: pytest.CaptureFixture[str]) -> None:
    call_backend("nccl")
    launch._enable_timing(MEASURED, {})
    assert (TIMING_VARIABLE in os.environ, capsys.readouterr().err) == (False, "")


@pytest.mark.usefixtures("unset", "in_group")
def test_after_a_group_of_gloo_one_of_nccl_may_come(capsys: pytest.CaptureFixture[str]) -> None:
    call_backend("gloo")
    launch._enable_timing(ON, {})
    assert (os.environ.get(TIMING_VARIABLE), capsys.readouterr().err) == ("1", "")


@pytest.mark.usefixtures("in_group")
def test_value_of_the_user_is_never_too_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TIMING_VARIABLE, "0")
    call_backend("nccl")
    launch._enable_timing(ON, {})
    assert (os.environ[TIMING_VARIABLE], capsys.readouterr().err) == ("0", "")


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"RANKSCOPE_NCCL_TIMING": "on"}, "1"), ({"RANKSCOPE_NCCL_TIMING": "off"}, None),
     ({"RANKSCOPE_NCCL_TIMING": "on", "RANKSCOPE_ENABLED": "0"}, None)],
)  # fmt: skip
def test_process_that_waits_for_its_group_reads_the_setting(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], expected: str | None
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    launch._enable_timing_of_deferred()
    assert os.environ.get(TIMING_VARIABLE) == expected
