"""The command line of the simulation, and the matrix of the score."""

from itertools import islice
from pathlib import Path

import msgspec
import pytest

from bench.rivals import RIVALS
from tests.simulation import parts
from tests.simulation.__main__ import main
from tests.simulation.faults import EFFECTS
from tests.simulation.matrix import HEALTHY, NOISE, UNSCORED, trials
from tests.simulation.noise import NOISES
from tests.simulation.parts import Part, Scored, Suite, carry_out, choose_part, join, run_suite, save, select
from tests.simulation.scenarios import PATTERNS, SCENARIOS
from tests.simulation.score import write_report
from tests.simulation.scoring import FaultJudged, Judged
from tests.simulation.wrongs import CONTRADICTION, UNTRUE, Wrong


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(arguments)
    return capsys.readouterr().out


def test_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in printed(capsys, "--list").splitlines()] == list(SCENARIOS)


def test_command_prints_the_verdict_and_its_judgement(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--ranks", "8", "--steps", "80", "--seed", "3", "--faults", "host_cpu:5:1.5:40")
    assert "Rank 5 (node0000): 1.5" in text
    assert "found after 24 steps; ranks right, cause right, pattern right" in text
    assert text.endswith("false findings: 0\n")


def test_named_scenario_takes_another_seed_noise_and_length(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--scenario", "healthy", "--steps", "24", "--noise", "quiet", "--seed", "5")
    assert text.startswith("16 ranks, fsdp, 24 steps, seed 5\n")
    assert "nothing is wrong" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--scenario", "nothing"], "scenario is 'nothing'; --list names those there are"),
        (["--scenario", "healthy", "--ranks", "8"], "--scenario has its own --ranks and --kind"),
        (["--kind", "magic"], "kind is 'magic'; known are dp, fsdp, tp, ep, pp, 1f1b, interleaved, zero_bubble, tp_pp"),
        (["--ranks", "7", "--kind", "tp"], "ranks is 7; a run of kind tp has 2 or more, in multiples of 4"),
        (["--ranks", "0"], "ranks is 0; a run of kind fsdp has 2 or more"),
        (["--noise", "loud"], "noise is 'loud'; known are quiet"),
        (["--network", "none"], "network is 'none'; known are slow"),
        (["--clocks", "stopped"], "clocks is 'stopped'; known are drifting"),
        (["--steps", "0"], "steps is 0; a run has at least 1"),
        (["--seed", "-1"], "seed is -1; it counts from 0"),
        (["--faults", "host_cpu:5"], "fault is 'host_cpu:5'; it is written cause:who:ratio[:begin[:pattern]]"),
        (["--faults", "host_cpu:5:2:60:steady:more"], "it is written cause:who:ratio[:begin[:pattern]]"),
        (["--faults", "ghosts:5:2"], "cause is 'ghosts' in 'ghosts:5:2'; known are data_loading"),
        (["--faults", "host_cpu:16:2"], "'16' is not in this run; it has 16 ranks, counted from 0"),
        (["--faults", "host_cpu:node2:2"], "'node2' is not in this run; it has 2 nodes, counted from 0"),
        (["--faults", "host_cpu:anyone:2"], "'anyone' is unknown; give a rank, nodeN, stageN or all"),
        (["--faults", "host_cpu:5:much"], "ratio is 'much' in 'host_cpu:5:much'; it is a number such as 1.3"),
        (["--faults", "host_cpu:5:nan"], "ratio is nan in 'host_cpu:5:nan'; it is above 1 and at most 1000"),
        (["--faults", "host_cpu:5:2:soon"], "begin is 'soon'"),
        (["--faults", "host_cpu:5:2:60:odd"], "pattern is 'odd' in 'host_cpu:5:2:60:odd'; known are steady"),
        (["--faults", "host_cpu:5:2:200"], "a fault begins at step 200 and the run has 200; give more --steps"),
    ],
)
def test_bad_input_is_refused_with_what_would_be_good(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_matrix_holds_every_cause_size_noise_and_pattern() -> None:
    all_trials = list(trials())
    faulty = [trial for trial in all_trials if trial.scenario.faults]
    assert len(faulty) >= 300
    assert sum(trial.about == HEALTHY for trial in all_trials) >= 100
    faults = [fault for trial in faulty for fault in trial.scenario.faults]
    assert {fault.cause for fault in faults} == set(EFFECTS) - UNSCORED
    assert {fault.ratio for fault in faults} == {1.03, 1.1, 1.3, 3.0}
    assert {trial.noise for trial in all_trials} == set(NOISES)
    assert {trial.scenario.topology.world_size for trial in all_trials} >= {8, 16, 32, 64, 256, 1024}
    assert len({trial.scenario.seed for trial in all_trials}) == len(all_trials)
    assert set(PATTERNS) - {"steady"} <= {trial.what for trial in faulty}


def test_report_has_a_row_for_each_job_and_each_rule_of_others() -> None:
    scored = [carry_out(next(trials()))]
    text = write_report(scored, "", 1.0)
    assert "| data_loading, 1.03 x | 1 | 1 | 0.000 |" in text
    assert "| **rankscope** | reports |" in text
    assert "| relative score < 0.75 | kernel time |" in text


def test_report_says_which_misses_the_ideal_test_decides() -> None:
    trial = next(trial for trial in trials() if trial.about == NOISE)
    judged = {name: Judged((), 0, 0, 1) for name in RIVALS}
    faults = [Judged((FaultJudged(found=found),), 0, 0, 1) for found in (True, False, False)]
    scored = [
        Scored(trial, ours, judged, ideal_z=ideal_z) for ours, ideal_z in zip(faults, (7.0, 5.0, 4.9), strict=True)
    ]
    # Of three one was found, and two exceed five deviations, of which one was missed.
    assert "| quiet, 1.1 x | 3 | 1 | 2 | 1 | 4.9 | 5.0 |" in write_report(scored, "", 1.0)
    assert "ideal" not in write_report([one._replace(ideal_z=None) for one in scored], "", 1.0)


def test_report_counts_what_was_wrong_and_names_the_run() -> None:
    trial = next(trials())
    judged = {name: Judged((), 0, 0, 1) for name in RIVALS}
    wrongs = (Wrong(UNTRUE, "says so"), Wrong(CONTRADICTION, "says the reverse"), Wrong(UNTRUE, "again"))
    text = write_report([Scored(trial, Judged((), 0, 0, 1), judged, wrongs, (0.02, -0.12), (10, 40, 14))], "", 1.0)
    # One contradiction, two untrue sentences; two costs, the middle of 0.02 and 0.12 is 0.07.
    assert "| one rank | 1 | 1 | 2 | 0 | 0 | 0 | 0 | 0 | 2 | 0.070 | 0.120 |" in text
    assert "must be: 3, 14 steps wide at the median and 40 at most." in text
    assert f"- run {trial.scenario.seed} (one rank; data_loading; dp 8): untrue sentence: says so" in text


def test_parts_of_the_matrix_are_joined_to_the_whole(tmp_path: Path) -> None:
    few = list(islice(trials(), 3))
    assert [[trial.scenario.seed for trial in choose_part(few, (number, 2))] for number in (1, 2)] == [[1, 3], [2]]
    scored = [carry_out(trial) for trial in few]
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path, some, took_s in zip(paths, (scored[:2], scored[2:]), (10.0, 5.0), strict=True):
        path.write_bytes(msgspec.json.encode(Part(took_s, [save(one) for one in some])))
    assert join(few, paths) == (scored, 15.0)
    with pytest.raises(ValueError, match="2 runs in these files are not all 3 once each"):
        join(few, paths[:1])
    assert join(few, paths[:1], is_incomplete=True) == (scored[:2], 10.0)
    with pytest.raises(ValueError, match="4 runs in these files are not all 3 once each"):
        join(few, paths[:1] * 2, is_incomplete=True)


def test_report_of_some_parts_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "RESULTS", tmp_path)
    few, path = list(islice(trials(), 3)), tmp_path / "one.json"
    path.write_bytes(msgspec.json.encode(Part(10.0, [save(carry_out(few[0]))])))
    suite = Suite(
        lambda: few,
        "tests.simulation.score",
        "score.md",
        lambda scored, head, took_s: f"{head}\n{len(scored)} {took_s}",
    )
    run_suite(suite, "", ["--join", str(path), "--incomplete"])
    assert (tmp_path / "score.md").read_text().endswith("\n| judged | 1 of 3 runs |\n1 10.0")
    assert capsys.readouterr().out.endswith("\n| judged | 1 of 3 runs |\n1 10.0")


def test_selection_has_kinds_and_one_half_of_the_seeds() -> None:
    listed = list(trials())
    chosen = select(listed, 2, [HEALTHY], "odd")
    assert {trial.about for trial in chosen} == {HEALTHY}
    assert all(trial.scenario.seed % 2 for trial in chosen)
    both = [one for half in ("even", "odd") for one in select(listed, 1, [HEALTHY], half)]
    assert sorted(one.scenario.seed for one in both) == [one.scenario.seed for one in listed if one.about == HEALTHY]
    with pytest.raises(SystemExit, match="--only has nonsense; known are one rank, noise, pattern"):
        select(listed, 1, ["nonsense"], None)


def test_part_without_a_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    suite = Suite(trials, "tests.simulation.score", "score.md", write_report)
    with pytest.raises(SystemExit):
        run_suite(suite, "", ["--part", "1/2"])
    assert "--part needs --save FILE: a report is of all parts" in capsys.readouterr().err


def test_report_bounds_the_rate_of_false_findings() -> None:
    """None in 90,000 steps: at most 3.00 of them expected, so 33.3 per million, and 2,949,120 in 1,024 x 86,400."""
    trial = next(trial for trial in trials() if trial.about == HEALTHY)
    text = write_report(
        [Scored(trial, Judged((), 0, 0, 90_000), {name: Judged((), 0, 0, 90_000) for name in RIVALS})], "", 1.0
    )
    assert "healthy runs: 0 in 90,000 steps of ranks without a fault, so at most 33.29 per 1e6 of them" in text
    assert "2945 a day at 1,024 ranks with steps of 1 s" in text
