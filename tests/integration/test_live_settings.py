"""Settings of a real job that change while it goes on: `rankscope set`, a collector, and ranks that train."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.serving import Served, serving, wait_for
from tests.integration.torchrun import AGENT, OFTEN, forked_ranks, name_job, started, torchrun

JOB: Final = name_job()
CONTROL: Final = "control-0123456789abcdef"
SCRIPT: Final = "uneven_pace.py"
"""Rank 1 takes 1.08 times as long in a sleep of 100 ms."""
RARELY: Final = {**OFTEN, "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "3600", "RANKSCOPE_MEASURE_FLOPS": "0"}
EARLY_STEPS: Final = 64
"""Early full windows come in intervals that double: three of them in so many steps, and one in the 64 after that."""
LATER_STEPS: Final = 100
WINDOW_STEPS: Final = 2


@pytest.fixture(autouse=True)
def only_these_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without what whoever runs the tests has set for himself; the control token is in a file."""
    for name in [name for name in os.environ if name.startswith("RANKSCOPE") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    control = tmp_path / "control"
    control.write_text(CONTROL)
    control.chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("RANKSCOPE_CONTROL_TOKEN_FILE", str(control))


@contextlib.contextmanager
def collecting(folder: Path, *arguments: str, listen: str = "tcp://127.0.0.1:0") -> Iterator[Served]:
    """A collector with a store that takes orders."""
    own = ("--store", str(folder / "runs.db"), "--http-control-token-file", str(folder / "control"))
    with serving(*own, *arguments, listen=listen) as served:
        yield served


class Asked:
    """What `rankscope set` says of the job at a collector."""

    def __init__(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        self.served = served
        self._capsys = capsys

    def say(self, *words: str) -> str:
        assert main(["set", JOB, *words, "--url", self.served.url]) == 0
        return self._capsys.readouterr().out

    def wait_until_said(self, text: str) -> str:
        return wait_for(lambda: said if text in (said := self.say()) else None, self.say)

    def wait_for_finding(self) -> Finding:
        return next(one for one in self.wait(lambda run: bool(find_named(run))).open_findings if one.kind == STRAGGLER)

    def wait(self, predicate: Callable[[RunSnapshot], bool]) -> RunSnapshot:
        return self.served.wait_for_run(JOB, predicate)


def find_named(run: RunSnapshot) -> list[int]:
    return [rank for one in run.open_findings if one.kind == STRAGGLER for rank in one.ranks]


def count_windows(run: RunSnapshot) -> int:
    """The full windows of rank 0 so far."""
    return run.ranks[0].totals.windows // WINDOW_STEPS


def has_steps(steps: int, after: RunSnapshot | None = None) -> Callable[[RunSnapshot], bool]:
    """Whether rank 0 has reported so many steps, or so many since."""
    before = 0 if after is None else after.ranks[0].totals.steps
    return lambda run: run.ranks[0].totals.steps >= before + steps


def test_rank_is_named_by_another_threshold_until_it_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = torchrun(2, *AGENT, SCRIPT, str(tmp_path / "end"))
    with collecting(tmp_path, "--slowdown-ratio-min", "1.3") as served:
        asked = Asked(served, capsys)
        with started(job, {**OFTEN, "RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_RUN": JOB}) as training:
            judged = asked.wait(lambda run: run.abstained is None and has_steps(60)(run))
            assert find_named(judged) == []

            said = asked.say("slowdown_ratio_min=1.03", "--by", "anna")
            assert "slowdown_ratio_min 1.03 instead of 1.3, set by anna on " in said
            named = asked.wait_for_finding()
            assert named.ranks == (1,)
            assert named.evidence["slowdown_ratio_min"] == 1.03
            assert "Judged with slowdown_ratio_min 1.03 instead of 1.3." in named.sentence

            asked.say("slowdown_ratio_min=1.03", "--for", "2s", "--by", "ben")
            over = asked.wait(lambda run: not run.settings.changed and not find_named(run))
            assert [(one.kind, one.value, one.by) for one in over.settings.past] == [
                ("set", 1.03, "anna"), ("set", 1.03, "ben"), ("over", 1.3, "ben"),
            ]  # fmt: skip
            assert find_named(asked.wait(has_steps(40, over))) == []
            (incident,) = [
                one for one in json.loads(served.read("/api/v1/incidents"))["incidents"] if one["kind"] == STRAGGLER
            ]
            assert incident["resolved_reason"] == "less than the threshold that was set"
            report = json.loads(served.read(f"/api/v1/runs/{JOB}/report"))
            assert report["settings"]["past"][-1]["text"].startswith("slowdown_ratio_min 1.3 again instead of 1.03")
            (tmp_path / "end").touch()
            assert training.wait().exit_code == 0


def test_change_is_kept_by_the_next_collector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = forked_ranks(2, *AGENT, SCRIPT, str(tmp_path / "end"))
    with contextlib.ExitStack() as ends:
        with collecting(tmp_path, "--slowdown-ratio-min", "1.3") as served:
            endpoint = served.endpoint
            environment = {**RARELY, "RANKSCOPE_COLLECTOR": endpoint, "RANKSCOPE_RUN": JOB}
            ends.enter_context(started(job, environment))
            asked = Asked(served, capsys)
            asked.wait(has_steps(1))
            asked.say("slowdown_ratio_min=1.03", "full_window_interval_s=30", "--for", "1h", "--by", "anna")
            before = asked.wait(lambda run: run.settings_taken.taken == 2).settings
        with collecting(tmp_path, "--slowdown-ratio-min", "1.3", listen=endpoint) as served:
            asked = Asked(served, capsys)
            named = asked.wait_for_finding()
            after = asked.wait(lambda run: run.settings_taken.taken == 2).settings
    assert after == before
    assert named.evidence["slowdown_ratio_min"] == 1.03


def test_ranks_take_another_rate_of_windows_and_go_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = forked_ranks(2, *AGENT, SCRIPT, str(tmp_path / "end"))
    with collecting(tmp_path) as served:
        asked = Asked(served, capsys)
        with started(job, {**RARELY, "RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_RUN": JOB}) as training:
            early = asked.wait(has_steps(EARLY_STEPS))
            assert count_windows(early) <= 3
            said = asked.say("full_window_interval_s=1", "line_samples=off", "--for", "1h")
            assert "full_window_interval_s 1 instead of each rank's own, set by " in said
            taken = asked.wait(lambda run: run.settings_taken.taken == 2)
            often = asked.wait(has_steps(LATER_STEPS, taken))
            assert count_windows(often) >= count_windows(taken) + 4  # at 100 ms a step it is one in 16
            asked.say("--reset")
            back = asked.wait(lambda run: run.settings_taken.taken == 2 and not run.settings.changed)
            rarely = asked.wait(has_steps(LATER_STEPS, back))
            assert count_windows(rarely) <= count_windows(back) + 2
            (tmp_path / "end").touch()
            assert training.wait().exit_code == 0


def test_what_a_job_forbids_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = forked_ranks(2, *AGENT, SCRIPT, str(tmp_path / "end"))
    forbids = {**OFTEN, "RANKSCOPE_SETTING_ORDERS": "no", "RANKSCOPE_RUN": JOB}
    with collecting(tmp_path) as served:
        asked = Asked(served, capsys)
        with started(job, {**forbids, "RANKSCOPE_COLLECTOR": served.endpoint}):
            asked.wait(lambda run: len(run.ranks) == 2)
            asked.say("full_window_interval_s=1")
            said = asked.wait_until_said("refuse")
    reason = "ranks 0-1 refuse: full_window_interval_s: setting_orders is no on this rank"
    assert f"of the ranks' settings: taken by 0 of 2 ranks; {reason}" in said


def test_wrong_names_and_values_are_refused_as_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = forked_ranks(2, *AGENT, SCRIPT, str(tmp_path / "end"))
    with collecting(tmp_path) as served, started(job, {"RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_RUN": JOB}):
        Asked(served, capsys).wait(lambda run: len(run.ranks) == 2)
        for word, problem in (
            ("slowdown_ratio_mn=1.2", "The nearest is slowdown_ratio_min: correct the name."),
            ("slowdown_ratio_min=0.9", "the smallest allowed is 1.01."),
            ("listen=x", "listen cannot change while a run goes on."),
        ):
            assert main(["set", JOB, word, "--url", served.url]) == 1
            assert problem in capsys.readouterr().err
