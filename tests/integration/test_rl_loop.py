"""A loop of post-training by reinforcement with one rank that rolls out slowly: who is named, by which phase, and what
rank 0 receives that and has logged, in files that the loggers' own packages read back.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankscope.agent.run_report import VALUES
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.ordering_collectors import running
from tests.integration.serving import wait_for
from tests.integration.torchrun import AGENT, CHECKOUT, OFTEN, Ended, forked_ranks, run
from tests.integration.wandb_files import read_history

RANKS, SLOW = 3, 1
RUN = "rl"
LOGGERS = [name for name in ("tensorboard", "mlflow", "wandb") if find_spec(name) is not None]


class Seen(NamedTuple):
    """How the job ended, what each rank was told at its end, the run afterwards, and where the logs are."""

    ended: Ended
    told: dict[int, Any]
    run: RunSnapshot
    folder: Path


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("rl")
    options = ("--slow-rank", str(SLOW), "--log", *LOGGERS, "--folder", str(folder))
    with running(folder) as service:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": service.endpoint, "RANKSCOPE_RUN": RUN, "PYTHONPATH": CHECKOUT}
        ended = run(forked_ranks(RANKS, *AGENT, "rl_loop.py", *options), environment)
        assert ended.exit_code == 0, ended.stderr

        def find_end() -> RunSnapshot | None:
            found = service.snapshot.find_run(RUN)
            return found if found is not None and found.end is not None else None

        over = wait_for(find_end, lambda: str(service.snapshot.find_run(RUN)))
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return Seen(ended, {line["rank"]: line for line in lines}, over, folder)


def with_logger(name: str) -> pytest.MarkDecorator:
    """Skip a test where that logger is not installed."""
    return pytest.mark.skipif(
        name not in LOGGERS, reason=f"{name} is not installed; the extra `test` has it from Python 3.11 on"
    )


def test_rank_with_slow_rollouts_is_named_by_its_phase(seen: Seen) -> None:
    stragglers = [finding for finding in seen.run.findings if finding.kind == "straggler"]
    assert {finding.ranks for finding in stragglers} == {(SLOW,)}
    assert all(" of it in rollout" in finding.sentence for finding in stragglers), stragglers


def test_step_is_an_iteration_with_its_phases(seen: Seen) -> None:
    # The first call of rankscope.step() comes at the end of the first iteration: its two optimizer steps were steps.
    iterations = seen.told[0]["iterations"]
    for rank in seen.run.ranks:
        assert rank.totals.steps == iterations + 2
        assert {"rollout", "reward", "weight_sync", "forward", "backward"} <= rank.totals.phases_ns.keys()
        # The engine of every rank takes 20 ms; what the slow one takes longer, its peers wait for elsewhere.
        assert rank.totals.phases_ns["rollout"] >= 20_000_000 * iterations


def test_rank_0_is_told_what_the_collector_has_found(seen: Seen) -> None:
    report = seen.told[0]["report"]
    assert (report["run"], report["rank"]) == (RUN, 0)
    assert 0.0 <= report["age_s"] < 60.0
    (finding,) = report["findings"]
    assert (finding["kind"], finding["subject"]) == ("straggler", f"rank {SLOW}")
    assert " of it in rollout" in finding["sentence"]
    assert report["slowdown_ratio"] > 1.5
    assert 0.0 < report["goodput_ratio"] < 1.0
    assert 0.0 <= report["data_wait_ratio"] < 0.5
    assert report["mfu"] is None  # no GPU, whose peak it would be
    assert set(report["absent"]) >= {"mfu"}


def test_other_ranks_are_told_why_they_know_nothing(seen: Seen) -> None:
    for rank in (1, 2):
        report = seen.told[rank]["report"]
        assert {report[name] for name in VALUES} == {None}
        assert set(report["absent"].values()) == {f"the collector sends its summaries to rank 0; this is rank {rank}"}


@with_logger("tensorboard")
def test_tensorboard_reads_numbers_and_findings_back(seen: Seen) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - may be absent

    events = EventAccumulator(str(seen.folder / "tensorboard")).Reload()
    counts = [(event.step, event.value) for event in events.Scalars("rankscope/open_findings")]
    assert counts[-1][1] == 1.0
    assert [step for step, _ in counts] == sorted({step for step, _ in counts})
    assert events.Scalars("rankscope/slowdown_ratio")[-1].value > 1.5
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("rankscope/findings/text_summary")]
    assert texts[-1].startswith("- warning: Rank 1 ")


@with_logger("mlflow")
def test_mlflow_reads_numbers_and_findings_back(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient  # noqa: PLC0415 - may be absent

    client = MlflowClient((seen.folder / "mlflow").as_uri())
    (logged,) = client.search_runs(["0"])
    counts = client.get_metric_history(logged.info.run_id, "rankscope/open_findings")
    assert max(counts, key=lambda metric: metric.step).value == 1.0
    assert len({metric.step for metric in counts}) == len(counts)
    assert logged.data.metrics["rankscope/slowdown_ratio"] > 1.5
    assert logged.data.tags["rankscope.findings"].startswith("warning: Rank 1 ")


@with_logger("wandb")
def test_wandb_reads_numbers_and_findings_back(seen: Seen) -> None:
    (path,) = seen.folder.glob("wandb/offline-run-*/run-*.wandb")
    rows = [row for row in read_history(path) if "rankscope/open_findings" in row]
    assert rows[-1]["rankscope/open_findings"] == 1
    assert rows[-1]["rankscope/slowdown_ratio"] > 1.5
    texts = [row["rankscope/findings"] for row in rows if "rankscope/findings" in row]
    assert texts[-1].startswith("warning: Rank 1 ")


def test_logs_say_nothing_and_fail_nowhere(seen: Seen) -> None:
    assert seen.ended.heard_of_agent == []
    assert seen.ended.left == ()
