"""`rankscope compare`: forms, refusals, and the exit status for CI."""

import json
from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from tests.integration.live_worlds import LiveWorld
from tests.unit.collector.comparison.compared_runs import keep_steps, kept_sums, vary

OLD, NEW = "bert@20261124T103005Z", "bert@20261125T103005Z"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two runs of one name, of which the second is 1.1 times as slow, and one of more ranks."""
    path = tmp_path / "store.db"
    keep_steps(path, OLD, vary(100.0), sums=kept_sums(100.0, compute=1.0))
    keep_steps(path, NEW, vary(110.0, seed=1), sums=kept_sums(110.0, compute=1.0), node="node-b")
    keep_steps(path, "wide", vary(100.0, seed=2), world_size=4)
    return path


def compare(store: Path, *words: str) -> int:
    return main(["compare", *words, "--store", str(store)])


def test_text_begins_with_the_verdict(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(store, OLD, "bert") == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "B was slower: a usual step took 1.10 times as long as one of A (95 % interval 1.10 to 1.10): 100 % of the "
        "difference is compute."
    )
    assert "1 node of B is not among those of A: node-b." in text
    for title in (
        "THE TWO SIDES",
        "STEP TIME",
        "DIFFERENCE BY USE",
        "DIFFERENCE BY PHASE",
        "COLLECTIVES BY GROUP",
        "INCIDENTS",
        "WHAT LIMITS",
    ):
        assert title in text


def test_json_has_the_ratio_and_the_parts(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(store, OLD, NEW, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], round(found["ratio"], 3)) == ("slower", 1.1)
    assert [row["name"] for row in found["uses"]][:2] == ["compute", "exposed communication"]
    assert found["verdict"].startswith("B was slower: a usual step took 1.10 times as long")


def test_parts_of_a_run_are_compared(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(store, f"{OLD}@steps", "0:110", f"{OLD}@steps", "110:") == 0
    assert capsys.readouterr().out.startswith("No difference: ")


@pytest.mark.parametrize(("limit", "status"), [("1.05", 3), ("1.2", 0)])
def test_slower_than_allowed_exits_with_3(store: Path, limit: str, status: int) -> None:
    assert compare(store, "bert", "--baseline", "last-good", "--fail-above", limit) == status


def test_limit_within_the_noise_is_said_and_does_not_fail(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(store, OLD, NEW, "--json")
    found = json.loads(capsys.readouterr().out)
    limit = f"{(found['ratio'] + found['ratio_high']) / 2:.9f}"
    assert compare(store, OLD, NEW, "--fail-above", limit) == 0
    assert "not known whether B was within the limit" in capsys.readouterr().err


def test_chosen_baseline_is_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(store, "bert", "--baseline", "last-good")
    assert f"A is the last good run of this name, {OLD}" in capsys.readouterr().out
    keep_steps(store, OLD, vary(100.0), findings=2)
    compare(store, "bert", "--baseline", "last-good")
    text = " ".join(capsys.readouterr().out.split())
    assert "all that could be compared had findings of severity warning or critical" in text
    assert f"A is the one with the fewest, 2: {OLD}" in text


def test_unequal_work_is_refused_unless_asked_for(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(store, OLD, "wide") == 1
    assert "work was not equal: A has 2 ranks and B 4. --force compares them." in capsys.readouterr().err
    assert compare(store, OLD, "wide", "--force") == 0
    assert "The work was not equal: A has 2 ranks and B 4." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([OLD], "1 run named; compare needs two, A and B"),
        ([OLD, NEW, "wide"], "3 runs named"),
        ([OLD, NEW, "--baseline", "last-good"], "2 runs named; with --baseline name B only."),
        ([OLD, NEW, "--margin", "0"], "--margin is 0; allowed is more than 0"),
        ([OLD, NEW, "--margin", "nan"], "--margin is nan; allowed is more than 0"),
        ([OLD, NEW, "--fail-above", "0.9"], "--fail-above is 0.9; the smallest allowed is 1"),
        ([OLD, NEW, "--fail-above", "nan"], "--fail-above is nan; the smallest allowed is 1"),
    ],
)
def test_unusable_words_are_refused(
    store: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(store, *words) == 2
    assert reason in capsys.readouterr().err


def test_page_has_the_verdict_and_every_table(store: Path, tmp_path: Path) -> None:
    page = tmp_path / "compared.html"
    assert compare(store, OLD, NEW, "--html", str(page)) == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<h1>rankscope</h1><p>B was slower: a usual step took 1.10 times" in text
    assert "script" not in text.split("<body>")[1]
    for key in ("sides", "step_times", "uses", "phases", "collectives", "incidents", "notes"):
        assert f'href="#{key}"' in text


def test_running_collector_is_asked_where_no_store_is_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LiveWorld().serve(store=store) as server:
        for words in ([OLD, NEW, "--json"], [f"{OLD}@steps", "0:110", f"{OLD}@steps", "110:", "--json"]):
            assert compare(store, *words) == 0
            read = json.loads(capsys.readouterr().out)
            assert main(["compare", *words, "--url", server.url]) == 0
            assert json.loads(capsys.readouterr().out) == read
        assert main(["compare", OLD, "wide", "--url", server.url]) == 1
        assert "--force compares them" in capsys.readouterr().err
        assert main(["compare", NEW, "--baseline", "last-good", "--url", server.url]) == 2
        assert "name it with --store" in capsys.readouterr().err
