"""What of the agent's files a training process imports: not those of what it does not use."""

import pytest

from tests.counts import WITHOUT_WINDOWS, count_lines, imported_by_a_rank, name_of

RARE = (
    "agent/captures/trace_captures.py", "agent/captures/ordered_samples.py", "agent/captures/stall_samples.py",
    "agent/profiler/timed_collectives.py", "agent/profiler/measured_timing.py", "agent/reporting/spill.py",
    "agent/captures/held_objects.py", "agent/captures/adding_lines.py", "agent/sample/memory_history.py",
    "agent/sample/nvml.py", "agent/sample/out_of_memory.py", "agent/steps/device_timers.py", "agent/preflight",
    "measure/module_frames.py", "agent/faults",
    "agent/integrations", "agent/sidecar/ras_client.py", "agent/sidecar/inspector_dump.py",
    "measure/kineto_json.py", "agent/steps/pipeline_schedules.py", "agent/steps/layer_timers.py",
    "agent/steps/repeated_blocks.py", "agent/profiler/host_operators.py",
    "agent/profiler/kineto_events.py", "agent/profiler/operator_gate.py", "agent/spawned_child.py",
    "agent/script_launch.py",
    "agent/sidecar/worker_questions.py", "measure/node_messages.py", "measure/preflights.py", "measure/nccl_ras.py",
    "measure/nccl_inspector.py",
)  # fmt: skip
"""What a rank on a CPU that nothing happens to does not use."""


@pytest.mark.parametrize(
    ("variables", "lines_max"), [({}, 23_345), (WITHOUT_WINDOWS, 19_225)], ids=["by default", "without windows"]
)
def test_rank_imports_what_it_uses(variables: dict[str, str], lines_max: int) -> None:
    files = imported_by_a_rank(**variables)
    names = [name_of(path) for path in files]
    assert [name for name in names if name.startswith(RARE)] == []
    assert [name for name in names if "window_scheduler" in name] == [] or not variables
    assert sum(map(count_lines, files)) <= lines_max, "what is new may be imported when it is first used (late_imports)"
