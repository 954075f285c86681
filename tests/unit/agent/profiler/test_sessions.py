"""ProfilerSessions with `nccl_timing = measured`: real process groups of torch, called NCCL as far as they say."""

import secrets
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from rankscope.agent.config import MEASURED, AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.identity import read_identity
from rankscope.agent.profiler.measured_timing import PART, TimingState
from rankscope.agent.profiler.nccl_timing import TIMING_VARIABLE
from rankscope.agent.profiler.sessions import ProfilerSessions
from rankscope.agent.profiler.window_effect import STRETCH_NS_MIN, STRETCH_STEPS_MIN
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.records import StepRecord

WARMUP_STEPS = 2
STEP_NS = STRETCH_NS_MIN // STRETCH_STEPS_MIN + 1


@pytest.fixture(autouse=True)
def with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", SimpleNamespace, raising=False)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")


@pytest.fixture(params=["gloo"])
def group(request: pytest.FixtureRequest) -> Iterator[dist.ProcessGroup]:
    store = FakeStore() if request.param == "fake" else c10d.HashStore()
    dist.init_process_group(request.param, store=store, rank=0, world_size=1)
    pg_map = dist.distributed_c10d._world.pg_map
    ((found, (_, described)),) = pg_map.items()
    pg_map[found] = "nccl", described
    yield found
    dist.destroy_process_group()


class Rank:
    """The sessions of a rank on its training thread."""

    def __init__(self, variables: Mapping[str, str] = {}, setting: str = MEASURED) -> None:
        # A line is logged once in a run on a machine: also by another process that runs this test at the same time.
        environment = {"TORCHELASTIC_RUN_ID": secrets.token_hex(8), "WORLD_SIZE": "2", "RANK": "0", **variables}
        self.guard = Guard(error_budget=3)
        self.graphs = GraphCaptures()
        config = AgentConfig(
            nccl_timing=setting, full_windows=False, collective_windows=False, warmup_steps=WARMUP_STEPS
        )
        self.sessions = ProfilerSessions(
            config,
            read_identity(environment, "run"),
            environment,
            self.guard,
            self.graphs,
            find_resident_bytes=lambda: None,
        )
        self.step = 0

    def run(self, steps: int) -> "Rank":
        for _ in range(steps):
            self.sessions.on_step(StepRecord(step=self.step, start_host_ns=0, duration_ns=STEP_NS, phases_ns={}))
            self.step += 1
            self.sessions.on_boundary(self.step)
        return self


def state_of(rank: Rank) -> TimingState | None:
    return None if rank.sessions.timing is None else rank.sessions.timing.state


@pytest.mark.usefixtures("group")
def test_torchs_own_call_switches_timing_on_and_it_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    rank = Rank().run(WARMUP_STEPS + STRETCH_STEPS_MIN)
    windows = rank.sessions.windows
    assert (state_of(rank), windows.progress.records_devices) == (TimingState.COMPARED, False)
    rank.run(5 * STRETCH_STEPS_MIN)
    assert (state_of(rank), windows.timing_is_ours, rank.guard.errors) == (TimingState.KEPT, True, {})
    assert windows.progress.records_devices, "durations may be read, from the step after the comparison on"
    assert WARMUP_STEPS + 5 * STRETCH_STEPS_MIN < windows.timed_from_step < rank.step
    rank.sessions.log()
    rank.sessions.log()
    assert capsys.readouterr().err.count("NCCL's collectives have been timed since step 34") == 1


@pytest.mark.parametrize("group", ["fake"], indirect=True)
@pytest.mark.usefixtures("group")
def test_backend_without_timing_is_said_with_torchs_own_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rank = Rank().run(WARMUP_STEPS + STRETCH_STEPS_MIN)
    rank.sessions.log()
    assert (state_of(rank), rank.guard.errors) == (TimingState.ABSENT, {})
    assert "are not timed (nccl_timing = measured), because torch refuses: Backend fake" in capsys.readouterr().err


@pytest.mark.usefixtures("group")
def test_a_captured_graph_prevents_timing() -> None:
    rank = Rank().run(1)
    rank.graphs.wrap_begin(lambda: None)()
    rank.graphs.wrap_end(lambda: None)()
    rank.run(WARMUP_STEPS + STRETCH_STEPS_MIN)
    assert state_of(rank) is TimingState.ABSENT


@pytest.mark.usefixtures("group")
def test_an_error_of_ours_is_counted_and_ends_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    monkeypatch.delattr(dist.distributed_c10d, "get_process_group_ranks")
    rank.run(2 * STRETCH_STEPS_MIN)
    assert (state_of(rank), rank.guard.errors) == (TimingState.ABSENT, {PART: 1})


@pytest.mark.parametrize("value", ["0", "1"])
def test_where_the_job_has_decided_nothing_is_measured(value: str) -> None:
    assert state_of(Rank({TIMING_VARIABLE: value})) is None


@pytest.mark.parametrize("setting", ["auto", "on", "off"])
def test_other_settings_measure_nothing(setting: str) -> None:
    assert state_of(Rank(setting=setting)) is None
    assert len(Rank(setting=setting).sessions.inline_parts) == len(Rank().sessions.inline_parts) - 1


@pytest.mark.usefixtures("group")
def test_a_profiler_of_the_script_restarts_the_reference() -> None:
    rank = Rank().run(WARMUP_STEPS + STRETCH_STEPS_MIN - 1)
    rank.sessions.on_profiler(begins=True)
    rank.sessions.on_profiler(begins=False)
    assert state_of(rank.run(1)) is TimingState.REFERENCE
    assert state_of(rank.run(STRETCH_STEPS_MIN)) is TimingState.COMPARED


def test_where_gloo_cannot_be_watched_it_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    sessions = Rank(setting="off").sessions
    collectives = sessions.windows.ranges.collectives
    assert collectives.may_be_recorded
    sessions.log()
    assert "gloo" not in capsys.readouterr().err
    collectives.has_gloo = lambda: True
    collectives._futex = None  # as on a machine whose system calls are not known
    now_s = [0.0]
    collectives._monotonic = lambda: now_s[0]
    for now_s[0] in (0.0, 60.0):
        assert not collectives.may_be_recorded
    sessions.log()
    sessions.log()
    assert capsys.readouterr().err.count("no profiler windows with the collectives of gloo") == 1
