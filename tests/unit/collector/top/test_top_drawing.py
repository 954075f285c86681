"""Screens of `rankscope top` as plain text, for terminals of given sizes."""

import re

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.reports.terminal_colors import PLAIN, Colors
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.live_settings import RunSettings, SettingChange
from rankscope.collector.runs.ratio_basis import RatioBasis
from rankscope.collector.runs.run_end import FirstToFail, RunEnd
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.top.board import Board, press
from rankscope.collector.top.drawing import draw
from rankscope.collector.top.loop import print_once
from rankscope.collector.top.screen_lines import render, width_of
from rankscope.collector.top.snapshot_fetch import FetchedRank, FetchedRun, Gpu, StepTrend
from rankscope.measure.units import NS_PER_MS

SENTENCE = "Rank 2 (gpu-b) is 2.00 times as slow as its 3 peer ranks since step 60: " + "and so on " * 40
PHASES_NS = {"data": 10.0 * NS_PER_MS, "forward": 40.0 * NS_PER_MS, "backward": 50.0 * NS_PER_MS}


def lines_of(board: Board, view: FetchedRun, width: int = 80, height: int = 24) -> list[str]:
    lines, _ = draw(board, view, width, height)
    return render(lines, PLAIN)


def line(rank: int, ratio: float | None = 1.0, node: str = "gpu-a", **more: object) -> FetchedRank:
    times = {"step_ns_median": 100.0 * NS_PER_MS, "own_ns_median": 90.0 * NS_PER_MS}
    return FetchedRank(rank=rank, node=node, slowdown_ratio=ratio, **{**times, **more})  # type: ignore[arg-type]


def view(ranks: tuple[FetchedRank, ...], findings: tuple[Finding, ...] = (), **more: object) -> FetchedRun:
    run = RunSnapshot(run="llama", world_size=4, restart_count=0, ranks=(), open_findings=findings, **more)  # type: ignore[arg-type]
    return FetchedRun(wall_s=0.0, runs=("llama",), run=run, ranks=ranks)


def test_device_bars_that_are_absent_have_a_reason() -> None:
    why = "full windows ended after step 9: the agent dropped them"
    ended = tuple(line(rank, ratio_basis=RatioBasis(absent=why)) for rank in range(2))
    assert f"device: {why}" in lines_of(Board(), view(ended))[2]
    assert not any("device:" in text for text in lines_of(Board(), view((line(0),))))
    gone = line(2, up=False, ended="failed")
    assert f"device: {why}" in lines_of(Board(), view((*ended, gone)))[2]


FINDING = Finding(kind="straggler", ranks=(2,), cause="host_cpu", sentence=SENTENCE)


def test_changed_settings_are_said_before_what_is_found_by_them() -> None:
    change = SettingChange(name="slowdown_ratio_min", value=1.2, before=1.05, own=1.05, by="ada", wall_s=0.0)
    changed = view((line(0),), settings=RunSettings(changed=(change,), past=(change,)))
    assert lines_of(Board(), changed, width=160)[1] == change.text
    assert not any(change.text in text for text in lines_of(Board(), view((line(0),)), width=160))


def test_title_has_mfu_where_every_live_rank_has_it() -> None:
    known = (line(0, mfu_ratio=0.3), line(1, mfu_ratio=0.5), line(2, ended="failed"))
    assert "MFU 40 %" in lines_of(Board(), view(known))[0]
    assert "MFU" not in lines_of(Board(), view((*known, line(3))))[0]


def test_screen_fits_eighty_columns_and_its_height() -> None:
    ranks = tuple(line(rank, phases_ns_median=PHASES_NS, ratios={"compute": 0.5, "idle": 0.5}) for rank in range(100))
    lines = lines_of(Board(), view(ranks, (FINDING,) * 5))
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80


def test_signs_of_the_bars_are_explained_below_them() -> None:
    ranks = tuple(line(rank, phases_ns_median=PHASES_NS, ratios={"compute": 0.5, "idle": 0.5}) for rank in range(100))
    (key,) = lines_of(Board(), view(ranks))[-2:-1]
    assert key == "d data  f forward  b backward   # compute  . idle"
    assert key not in lines_of(Board(), view(ranks), height=10)  # a low terminal has ranks instead
    assert lines_of(Board(), view((line(0),)))[-2].startswith("──")  # nor is there a key of no bars


def test_ended_run_shows_its_end_and_no_ranks_up() -> None:
    first = FirstToFail(rank=1, node="gpu-a", reason="crashed", detail="SIGSEGV", line="a.py:24 (run)", last_step=7)
    end = RunEnd(reason="crashed", ended_wall_s=59.0, ranks={"crashed": 1}, first=first)
    lines = lines_of(Board(), view((line(0, ended="crashed"),), end=end), width=120)
    assert "llama  crashed at 1970-01-01 00:00:59 UTC" in lines[0]
    assert " up" not in lines[0]
    assert lines[1].startswith("first to fail: rank 1 (gpu-a), crashed (SIGSEGV) at a.py:24 (run)")
    assert lines[2].startswith("verdict: The run crashed at 1970-01-01 00:00:59 UTC")


@pytest.mark.parametrize("height", [10, 24, 60])
@pytest.mark.parametrize("count", [0, 3, 200])
def test_screen_is_filled_for_any_number_of_ranks(height: int, count: int) -> None:
    assert len(lines_of(Board(), view(tuple(map(line, range(count)))), height=height)) == height


def test_slowest_rank_is_first_with_its_bars() -> None:
    slow = line(
        2, 2.0, phases_ns_median=PHASES_NS, ratios={"compute": 0.5, "exposed_communication": 0.25, "idle": 0.25}
    )
    lines = lines_of(Board(), view((line(0), line(1), slow)))
    (row,) = [text for text in lines if "2.00x" in text]
    assert lines.index(row) < min(lines.index(text) for text in lines if "1.00x" in text)
    assert row.split()[0] == "2"
    assert row.count("f") == pytest.approx(4 * row.count("d"), abs=2)
    assert row.count("#") == pytest.approx(2 * row.count("~"), abs=1)


def test_long_sentence_is_cut_with_an_ellipsis() -> None:
    lines = lines_of(Board(), view((line(0),), (FINDING,)))
    assert lines[1].startswith("! Rank 2 (gpu-b)")
    assert lines[3].endswith("…")
    assert not any("and so on" in text for text in lines[4:])


def test_findings_that_do_not_fit_are_counted() -> None:
    assert any("and 2 more findings" in text for text in lines_of(Board(), view((line(0),), (FINDING,) * 5)))


def test_title_shows_ranks_step_goodput_and_slowdown() -> None:
    goodput = GoodputSnapshot(wall_ns=1000, productive_ns=900)
    title = lines_of(
        Board(), view((line(0, last_step=41), line(1, up=False)), goodput=goodput, run_slowdown_ratio=1.5), 120
    )[0]
    assert "llama  1 of 4 up  step 41  goodput 90 %  slowdown 1.50x" in title


def test_frozen_view_is_marked_and_does_not_change() -> None:
    first = view((line(0, 1.5),))
    lines = lines_of(press(Board(), "f", first), view((line(0, 9.0),)), 120)
    assert "FROZEN" in lines[0]
    assert any("1.50x" in text for text in lines)


def test_reason_for_no_verdict_is_shown() -> None:
    assert "no verdict yet: too few ranks" in lines_of(Board(), view((line(0),), abstained="too few ranks"))[1]


def test_ranks_without_peers_are_told() -> None:
    lines = lines_of(Board(), view((line(0),), ranks_without_peers=3), 120)
    assert lines[2].strip() == "3 of 4 ranks have no peers with equal work: judged by their own past only"


def test_collector_without_runs_differs_from_a_lost_one() -> None:
    empty = FetchedRun(wall_s=0.0)
    assert "no run has reported" in lines_of(Board(), empty)[0]
    gone = FetchedRun(wall_s=0.0, problem="no collector answers at http://x")
    assert "no collector answers" in lines_of(Board(), gone)[0]


def test_names_cannot_control_the_terminal_or_colors() -> None:
    evil = line(0, node="\x1b[2Jgpu[red]", ended="\x1b]0;x\x07")
    text = "\n".join(lines_of(Board(), view((evil,)), 160))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "gpu[red]" in text


def test_unknown_is_a_dash_not_zero() -> None:
    lines = lines_of(Board(), view((FetchedRank(rank=7, node="n"),)))
    (row,) = [text for text in lines if text.split()[:2] == ["7", "n"]]
    assert row.split() == ["7", "n", "-", "-", "-", "up"]


def test_filter_is_shown_at_the_foot() -> None:
    typing = Board(is_typing=True, filter="gpu")
    assert lines_of(typing, view((line(0),)))[-1].startswith("filter: gpu_")
    assert "filter 'gpu'" in lines_of(Board(filter="gpu"), view((line(0),)), 120)[-1]


def test_help_lists_the_keys() -> None:
    text = "\n".join(lines_of(Board(shows_help=True), view((line(0),)), 120))
    assert "sort by slowdown" in text
    assert "freeze" in text


def test_view_printed_once_ends_with_its_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    print_once(view((line(0), line(1), line(2))), Board())
    assert len(capsys.readouterr().out.splitlines()) == 8  # run, verdict, head, three ranks, rule, keys


def gpu(**known: object) -> Gpu:
    given = {"utilization_ratio": 0.97, "memory_used_bytes": 71 * 2**30, "memory_total_bytes": 80 * 2**30,
             "power_watts": 612.4, "temperature_celsius": 64.0, "sm_clock_hertz": 1_755_000_000}  # fmt: skip
    return Gpu(**{**given, **known})  # type: ignore[arg-type]


GPU_HEADS = ["util", "%", "mem", "GiB", "W", "°C", "MHz"]
GPU_CELLS = ["97", "71.0/80", "612", "64", "1755"]


def test_wide_terminal_has_gpus_and_bars() -> None:
    ranks = tuple(line(rank, gpu=gpu(), phases_ns_median=PHASES_NS) for rank in range(2))
    head, first = lines_of(Board(), view(ranks), 140)[2:4]
    assert head.split()[6:14] == ["slow↓", *GPU_HEADS]
    assert head.split()[14:] == ["phases", "device", "state"]
    assert first.split()[5:10] == GPU_CELLS


def test_narrow_terminal_has_gpus_in_place_of_bars_on_a_key() -> None:
    shown = view((line(0, gpu=gpu(), phases_ns_median=PHASES_NS),))
    assert "util" not in lines_of(Board(), shown)[2]
    lines = lines_of(press(Board(), "g", shown), shown)
    assert lines[2].split() == ["rank", "node", "step", "ms", "slow↓", *GPU_HEADS, "state"]
    assert lines[3].split() == ["0", "gpu-a", "100.0", "1.00x", *GPU_CELLS, "up"]
    assert max(map(width_of, lines)) <= 80


def test_widest_terminal_also_has_steps_waits_and_mfu() -> None:
    shown = view((line(0, gpu=gpu(), last_step=41, wait_caused_ns_median=7.0 * NS_PER_MS, mfu_ratio=0.4),))
    assert lines_of(Board(), shown, 200)[3].split()[10:13] == ["41", "7.0", "40"]


def test_unknown_gpu_numbers_are_dashes_and_no_gpu_no_columns() -> None:
    unknown = line(0, gpu=Gpu(memory_used_bytes=2**30))
    assert lines_of(Board(), view((unknown,)), 140)[3].split()[5:10] == ["-", "1.0", "-", "-", "-"]
    assert "util" not in lines_of(Board(shows_gpus=True), view((line(0),)), 140)[2]


def test_node_view_has_a_line_a_node_with_its_worst_rank() -> None:
    ranks = (
        line(0, gpu=gpu(power_watts=100.0, temperature_celsius=50.0)),
        line(1, 1.5, gpu=gpu(power_watts=200.0, utilization_ratio=0.5, sm_clock_hertz=900_000_000)),
        line(2, node="gpu-b", up=False),
    )
    lines = lines_of(press(Board(), "v", view(ranks)), view(ranks), 140)
    assert lines[2].split()[:2] == ["node", "worst"]
    assert lines[3].split()[:10] == [
        "gpu-a", "1", "100.0", "90.0", "1.50x", "74", "71.0/80", "300", "64", "900"]  # fmt: skip
    assert lines[3].split()[-1] == "0-1"
    assert lines[4].split()[:2] + lines[4].split()[-2:] == ["gpu-b", "2", "1", "silent"]


def test_node_view_fits_eighty_columns_with_its_bars() -> None:
    ranks = tuple(line(rank, phases_ns_median=PHASES_NS, ratios={"idle": 1.0}) for rank in range(8))
    lines = lines_of(Board(is_by_node=True), view(ranks))
    assert max(map(width_of, lines)) <= 80
    assert " dfffffbbbbb ........... 0-7" in lines[3]  # a step of 100 ms fills 11 columns


def test_step_time_is_drawn_from_two_points_on() -> None:
    ranks = (line(0),)
    assert not any("now" in text for text in lines_of(Board(), view(ranks)))
    curve = msgspec.structs.replace(view(ranks), trend=(1e8, 1e8, 2e8, 1.5e8))
    assert lines_of(Board(), curve)[2] == "step ▁▁█▅ 150.0 ms now, 100.0 ms to 200.0 ms"


def test_trend_has_a_point_for_each_poll_with_further_steps() -> None:
    trend = StepTrend()
    trend.begin("bert", [5.0])
    assert trend.is_of("bert")
    first = (line(0, last_step=3), line(1, last_step=4, step_ns_median=300.0 * NS_PER_MS))
    assert trend.add(first) == trend.add(first) == (5.0, 200.0 * NS_PER_MS)
    assert trend.add((line(0, last_step=5),)) == (5.0, 200.0 * NS_PER_MS, 100.0 * NS_PER_MS)
    assert trend.add((line(0),)) == (5.0, 200.0 * NS_PER_MS, 100.0 * NS_PER_MS)


def test_tall_terminal_has_more_findings_and_whole_suggestions() -> None:
    advised = tuple(
        Finding(kind="straggler", ranks=(rank,), cause="host_cpu", sentence=f"No {rank}.", suggestion="Do so. " * 30)
        for rank in range(6)
    )
    low, tall = (lines_of(Board(), view((line(0),), advised), height=height) for height in (24, 60))
    assert [text for text in low if text.startswith("! ")] == ["! No 0.", "! No 1.", "! No 2."]
    assert "and 3 more findings" in low
    assert len([text for text in tall if text.startswith("! ")]) == 6
    assert sum("Do so." in text for text in tall) == 6 * 3


def test_colors_only_repeat_letters() -> None:
    shown = view((line(0, 1.5, phases_ns_median=PHASES_NS),), (FINDING,))
    lines, _ = draw(Board(), shown, 100, 24)
    colored = "\n".join(render(lines, Colors(are_on=True)))
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored).split() == "\n".join(render(lines, PLAIN)).split()
    assert "\x1b[1;31m1.50x" in colored


def test_wide_characters_take_two_columns() -> None:
    lines = lines_of(Board(), view((line(0, node="节点一二三四五六七八"), line(1))), 80)
    assert {width_of(text[: text.index("100.0")]) for text in lines if "100.0" in text} == {
        21
    }  # 6 + 1 + 10 + 1, and 3 of 8
