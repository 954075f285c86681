"""SessionEvents: sessions of torch before 2.13 compared with those of later versions."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankscope.agent.profiler import kineto_events
from rankscope.agent.profiler.kineto_events import OF_DEVICE, HostActivity, SessionEvents, check_events, read_saved
from rankscope.measure.errors import UnavailableError
from tests.unit.agent.profiler.older_torch import DEVICE, HOST, to_session_events
from tests.unit.agent.traced_activities import TracedActivity

ROOT = Path(__file__).parents[4]


SESSIONS_WITH_COLLECTIVES = """
import json, os, sys
import torch
from torch import distributed
from rankscope.agent.profiler.process_groups import GroupProgress, ProcessGroups
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_reduction import parse_bytes
from tests.unit.agent.profiler.older_torch import find_older_profiler

distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
described = []
for find in (TorchProfiler.find, find_older_profiler):
    profiler = find()
    profiler.start(full=False)
    for elements in (5, 7):
        distributed.all_reduce(torch.ones(elements, dtype=torch.bfloat16))
    distributed.barrier()
    found = sorted(profiler.stop().trace_activities(), key=lambda activity: activity.timestamp())
    threads = set(map(int, os.listdir("/proc/self/task")))
    described.append({
        "names": [activity.name() for activity in found],
        "bytes": [parse_bytes(activity.metadata_json()) for activity in found],
        "kinds": sorted({activity.type() for activity in found}),
        "shortest_ns": min(activity.duration() for activity in found),
        "strange_threads": sorted({activity.resource_id() for activity in found} - threads),
    })
recorded = GroupProgress(1).read_enqueued()
print(json.dumps([*described, list(recorded.values()), list(ProcessGroups(1).count_on_host().values())]), flush=True)
os._exit(0)  # without waiting for gloo's threads (agent/shutdown/torch_threads.py)
"""


def test_light_session_has_all_of_a_collective_on_any_torch(tmp_path: Path) -> None:
    # In a process of its own: torch's flight recorder would remember the group.
    command = [sys.executable, "-c", SESSIONS_WITH_COLLECTIVES, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    line = ended.stdout.splitlines()[-1]  # some versions of gloo print before it
    since, before, recorded, counted = json.loads(line)
    assert since.pop("shortest_ns") > 0
    assert before.pop("shortest_ns") > 0
    assert since == before
    assert since == {
        "names": ["gloo:all_reduce", "gloo:all_reduce", "gloo:barrier"],
        "bytes": [10, 14, None],
        "kinds": ["user_annotation"],
        "strange_threads": [],
    }
    assert recorded == counted == [6], "three in each session"


def test_device_events_have_no_type() -> None:
    event = SimpleNamespace(device_type=lambda: DEVICE, scope=lambda: 0)
    assert HostActivity(event, HOST).type() == OF_DEVICE


def test_session_file_is_read_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_events, "MEMORY", str(tmp_path))
    saved = read_saved(to_session_events([TracedActivity("gemm", "kernel", 10, 5, 7)]))
    assert b'"name": "gemm"' in saved
    assert list(tmp_path.iterdir()) == []


def test_unwritable_session_file_is_an_error() -> None:
    with pytest.raises(OSError, match=r"window\.json"):
        read_saved(SessionEvents(SimpleNamespace(save=lambda _path: None), HOST))


def test_events_of_this_torch_are_complete() -> None:
    check_events(torch._C._autograd)


def test_missing_method_of_events_is_named() -> None:
    event: Any = SimpleNamespace(name=0, scope=0, device_type=0, start_us=0)
    with pytest.raises(UnavailableError, match="events have no start_ns"):
        check_events(SimpleNamespace(_KinetoEvent=event))
