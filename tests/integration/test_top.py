"""`rankscope top` in a pseudo-terminal, with a terminal emulator that shows what a user sees."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.light_ranks import crew_of
from tests.integration.serving import END_S_MAX, Served, serving
from tests.integration.terminal import top
from tests.integration.wire_ranks import telling
from tests.unit.collector.runs.run_stories import Story


@pytest.fixture(scope="module")
def watched() -> Iterator[Served]:
    """A collector that eight ranks of the run `story` have reported to, rank 5 of them slow, and one of another run."""
    with (
        serving("--rank-silent-s", "600") as served,
        crew_of("other", 1, served.endpoint),
        telling(Story(8), served.endpoint) as story,
    ):
        story.train(40).train(60, forward={5: 30.0})
        served.wait_for_run("story", lambda run: any(finding.rank == 5 for finding in run.open_findings))
        served.wait_for_run("other", lambda run: bool(run.ranks))
        yield served


def rows_of(lines: list[str]) -> list[str]:
    """Return the first cell of every rank's line."""
    return [cells[0] for line in lines if (cells := line.split()) and cells[0].isdecimal() and "ms" not in line]


def test_slow_rank_is_first_below_its_finding(watched: Served) -> None:
    with top("--url", watched.url, "--interval", "0.2", "--run", "story") as terminal:
        # The screen comes in pieces: what is waited for last is what is drawn last.
        lines = terminal.wait_until(lambda lines: rows_of(lines)[:1] == ["5"] and "q quit" in lines[-1])
        assert "story  8 of 8 up" in lines[0]
        assert any(line.startswith("! Rank 5") for line in lines)


def test_keys_sort_filter_freeze_and_switch_runs(watched: Served) -> None:
    with top("--url", watched.url, "--interval", "0.2", "--run", "story") as terminal:
        terminal.wait_until(lambda lines: len(rows_of(lines)) == 8)
        terminal.press("r")
        terminal.wait_until(lambda lines: rows_of(lines) == [str(rank) for rank in range(8)])
        terminal.press("/2-3\r")
        terminal.wait_until(lambda lines: rows_of(lines) == ["2", "3"])
        terminal.press("\x1b")
        terminal.wait_until(lambda lines: len(rows_of(lines)) == 8)
        terminal.press("v")
        terminal.wait_until(
            lambda lines: [line.split()[:2] for line in lines if line[:6] == "node-a"] == [["node-a", "5"]]
        )
        terminal.press("v")
        terminal.wait_until(lambda lines: len(rows_of(lines)) == 8)
        terminal.press("f")
        frozen = terminal.wait_until(lambda lines: "FROZEN" in lines[0])
        terminal.press("f")
        terminal.wait_until(lambda lines: "FROZEN" not in lines[0] and lines[0] != frozen[0])
        terminal.press("n")
        terminal.wait_until(lambda lines: " other  " in lines[0])


def test_resized_window_is_filled(watched: Served) -> None:
    with top("--url", watched.url, "--interval", "0.2", "--run", "story") as terminal:
        terminal.wait_until(lambda lines: len(rows_of(lines)) == 8)
        terminal.resize(130, 40)
        terminal.wait_until(lambda lines: len(lines) == 40 and "q quit" in lines[-1])


@pytest.mark.parametrize("end", ["q", "\x03"])
def test_terminal_is_restored_at_the_end(watched: Served, end: str) -> None:
    with top("--url", watched.url) as terminal:
        terminal.wait_until(lambda lines: "q quit" in lines[-1])
        assert not terminal.is_as_before
        terminal.press(end)
        assert terminal.wait_for_end(END_S_MAX) == (0 if end == "q" else 128 + signal.SIGINT)
        assert terminal.is_as_before


def test_lost_collector_is_reported_and_top_continues() -> None:
    with serving() as served, telling(Story(2), served.endpoint) as story:
        story.train(4)
        served.wait_for_run("story", lambda run: len(run.ranks) == 2)
        with top("--url", served.url, "--interval", "0.2") as terminal:
            terminal.wait_until(lambda lines: " story  " in lines[0])
            served.kill()
            terminal.wait_until(lambda lines: "no collector answers" in lines[0])
            assert terminal.child.poll() is None


def test_error_without_a_terminal_names_the_cure(watched: Served) -> None:
    command = [sys.executable, "-m", "rankscope.collector", "top", "--url", watched.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "--once" in done.stderr
    once = subprocess.run([*command, "--once", "--run", "story"], capture_output=True, text=True, check=False)
    assert once.returncode == 0
    assert len(rows_of(once.stdout.splitlines())) == 8
    assert "" not in [line.strip() for line in once.stdout.splitlines()]  # no screen is to be filled
    assert "\x1b" not in once.stdout


def test_missing_collector_is_an_error() -> None:
    command = [sys.executable, "-m", "rankscope.collector", "top", "--once", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no collector answers" in done.stderr
