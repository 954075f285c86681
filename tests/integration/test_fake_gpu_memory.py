"""A rank runs out of the fake GPU's memory: from torch's observer to the collector's incident."""

import json
from pathlib import Path

from rankscope.collector.detect.finding import Finding
from rankscope.collector.memory.snapshot_process import read_snapshot
from rankscope.collector.reports.snapshot_text import render_snapshot
from rankscope.collector.runs.memory_words import describe_memory
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.serving import have_ended, read_url, serving
from tests.integration.torchrun import Ended, forked_ranks, line_of, started

RUN = "fake-gpu-memory"
RANKS = 2
FROM_STEP = 5
GIB = 2**30
MODEL_BYTES = 4 * (16 * 16 + 16)
"""Of a linear layer with its bias, in fp32. The error is between forward and backward, so there are no gradients."""
ADAM_BYTES = 2 * MODEL_BYTES + 2 * 4
"""Two moments of each parameter, and for both of them a step in 4 bytes."""


def train(*options: str, **more: str) -> tuple[RunSnapshot, list[Finding], Ended, int]:
    """Return the run, its findings about memory, how the job ended, and the step that failed; check the incident."""
    command = forked_ranks(RANKS, "fake_gpu_memory.py", find_library(), "--step", str(FROM_STEP), *options)
    with serving() as served:
        with started(command, settings(served.endpoint, run=RUN, sample_interval_s="0.5", **more)) as job:
            ended = job.wait()
        run = served.wait_for_run(RUN, lambda seen: have_ended(seen) and seen.end is not None and bool(seen.findings))
        incidents = json.loads(read_url(f"{served.url}/api/v1/incidents?run={RUN}"))["incidents"]
    findings = [one for one in run.findings if one.kind == "out_of_memory"]
    about_memory = [one for one in incidents if one["kind"] == "out_of_memory"]
    assert [one["sentence"] for one in about_memory] == [one.sentence for one in findings]
    assert [rank.losses.errors for rank in run.ranks] == [{}] * RANKS
    (step,) = {int(line.rpartition(" ")[2]) for line in ended.stdout.splitlines() if "fails in step" in line}
    return run, findings, ended, step


def check_finding(findings: list[Finding], step: int) -> None:
    (found,) = findings
    assert (found.ranks, found.since_step, found.cause) == ((1,), step, "fragmentation")
    assert f"out of GPU memory in step {step} (forward). " in found.sentence
    assert found.also[0].startswith("8.0 GiB asked for")
    assert found.also[1:2] == ("74.0 GiB reserved by torch, 60.0 GiB of it in use by tensors",)
    assert found.also[2].startswith("parameters 1.1 KiB")
    kinds = [found.evidence[f"{name}_bytes"] for name in ("parameters", "gradients", "optimizer_state")]
    assert kinds == [MODEL_BYTES, 0, ADAM_BYTES]


def check_peaks(run: RunSnapshot, ended: Ended) -> None:
    """Check that each rank's peak, which rose in the step that the script says, was reached around that step."""
    (step,) = {int(line.rpartition(" ")[2]) for line in ended.stdout.splitlines() if "has its peak" in line}
    for one in run.ranks:
        assert one.allocator is not None
        after, by = one.allocator.allocated_peak_after_step, one.allocator.allocated_peak_by_step
        assert after is not None
        assert by is not None
        assert after < step <= by
        peak = f"GPU: 60.0 GiB allocated, peak 62.0 GiB (reached between the ends of steps {after} and {by})"
        assert describe_memory(one, run.ranks).startswith(peak)


def test_caught_error_is_an_incident_of_a_run_that_finishes() -> None:
    run, findings, ended, step = train()
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    check_peaks(run, ended)
    check_finding(findings, step)
    assert findings[0].details == {"held": "40.0 GiB in 1 block, model.py:24 (forward)"}
    assert ended.stdout.count("was told to record []") == RANKS, "the script's own recording was touched"
    assert run.end is not None
    assert (run.end.reason, run.end.first) == ("finished", None)


def test_end_of_a_rank_names_the_error_before() -> None:
    run, findings, ended, step = train("--dies")
    assert ended.exit_code != 0
    assert ended.left == ()
    check_finding(findings, step)
    assert run.end is not None
    assert run.end.first is not None
    assert (run.end.first.rank, run.end.first.reason) == (1, "failed")
    assert run.end.first.out_of_memory == (
        f"its GPU out of memory in step {step} (forward): 8.0 GiB asked for, 2.0 GiB of the device free; 74.0 GiB "
        "reserved by torch, 60.0 GiB of it in use by tensors"
    )


def test_memory_history_is_recorded_once_low_and_written_at_end(tmp_path: Path) -> None:
    run, findings, ended, step = train("--edge", capture_folder=str(tmp_path))
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    ring = "{'enabled': 'all', 'context': 'alloc', 'stacks': 'python', 'max_entries': 20000}"
    assert ended.stdout.count(f"was told to record [{ring}]") == RANKS
    (found,) = findings
    assert (found.ranks, found.since_step, found.cause) == ((1,), step, "fragmentation")
    assert found.why.endswith("(the largest piece 9.0 GiB)")
    line = line_of("fake_gpu_memory.py", "# allocates")
    assert found.details["held"].split("; ")[0] == (
        f"40.0 GiB in 1 block, fake_gpu_memory.py:{line} (forward), Linear in Attention"
    )
    path = tmp_path / RUN / "out-of-memory" / "rank-1-1.pickle"
    assert found.details["snapshot"] == str(path)
    assert any(text.endswith(str(path)) for text in found.also)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert run.end is not None
    assert run.end.reason == "finished"
    report = read_snapshot(str(path)).report
    (device,) = report.devices
    assert (device.reserved_bytes, device.allocated_bytes) == (74 * GIB, 60 * GIB)
    assert [(one.module, one.bytes) for one in device.modules] == [("Linear in Attention", 40 * GIB), ("", 20 * GIB)]
    said = render_snapshot(report, 20)
    assert "asked for 10,240.00 MiB; at most 9,216.00 MiB would have fitted: 2,048.00 MiB free on the device" in said
    assert "Linear in Attention" in said


def test_end_of_a_rank_names_the_snapshot(tmp_path: Path) -> None:
    run, findings, ended, _ = train("--edge", "--dies", capture_folder=str(tmp_path))
    assert ended.exit_code != 0
    path = tmp_path / RUN / "out-of-memory" / "rank-1-1.pickle"
    assert path.is_file()
    assert findings[0].details["snapshot"] == str(path)
    assert run.end is not None
    assert run.end.first is not None
    assert run.end.first.out_of_memory.endswith(f"; memory snapshot: {path}")
