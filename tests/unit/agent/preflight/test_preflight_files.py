"""What a pre-flight writes, and the history that it reads."""

from pathlib import Path

import msgspec
import pytest

from rankscope.agent.preflight.checks import CPU, MEMORY, list_checks
from rankscope.agent.preflight.files import (
    PreflightLine,
    append_history,
    build_line,
    find_hosts,
    read_history,
)
from rankscope.agent.preflight.results import Measured, NamedNode, PreflightReport, RankResults
from rankscope.measure.errors import UnavailableError


def make_result(rank: int, node: str, *rates: float) -> RankResults:
    return RankResults(
        rank=rank, local_rank=rank, node=node, kind=CPU, device="EPYC", checks={MEMORY: Measured(values=rates)}
    )


def make_report(results: tuple[RankResults, ...] = (), named: tuple[str, ...] = ()) -> PreflightReport:
    return PreflightReport(
        wall_s=1.0, took_s=2.0, status="none_named", sentence="", ranks=len(results), nodes=(),
        named=tuple(NamedNode(node=node, reasons=()) for node in named), results=results,
    )  # fmt: skip


def test_line_has_the_slowest_rank_of_each_node() -> None:
    line = build_line(
        make_report((make_result(0, "a", 9.0, 8.0, 7.0), make_result(1, "a", 5.0, 6.0))), list_checks(CPU)
    )
    assert line.rates == {"a": {MEMORY: 5.5}}
    assert line.devices == {"a": "EPYC"}


def test_history_returns_what_was_added(tmp_path: Path) -> None:
    path = str(tmp_path / "history.jsonl")
    assert read_history(path).find_past([]) == {}
    for rate in (4.0, 5.0):
        append_history(path, PreflightLine(wall_s=1.0, devices={"a": "EPYC"}, rates={"a": {MEMORY: rate}}))
    assert read_history(path).find_past([make_result(0, "a", 1.0)]) == {MEMORY: {"a": [4.0, 5.0]}}


def test_named_and_other_devices_are_no_past(tmp_path: Path) -> None:
    path = str(tmp_path / "history.jsonl")
    append_history(path, PreflightLine(wall_s=1.0, devices={"a": "EPYC"}, rates={"a": {MEMORY: 1.0}}, named=("a",)))
    append_history(path, PreflightLine(wall_s=1.0, devices={"a": "Xeon"}, rates={"a": {MEMORY: 2.0}}))
    append_history(path, PreflightLine(wall_s=1.0, devices={"a": "EPYC"}, rates={"a": {MEMORY: 0.0}}))
    assert read_history(path).find_past([make_result(0, "a", 1.0)]) == {}


def test_only_the_last_twenty_are_the_past(tmp_path: Path) -> None:
    path = str(tmp_path / "history.jsonl")
    for rate in range(1, 26):
        append_history(path, PreflightLine(wall_s=1.0, devices={"a": "EPYC"}, rates={"a": {MEMORY: float(rate)}}))
    assert read_history(path).find_past([make_result(0, "a", 1.0)])[MEMORY]["a"] == [float(n) for n in range(6, 26)]


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    good = msgspec.json.encode(PreflightLine(wall_s=1.0, devices={"a": "EPYC"}, rates={"a": {MEMORY: 3.0}}))
    path.write_bytes(b"\xff\x00\n" + good + b"\n" + good[:20] + b"\n[]\n")
    history = read_history(str(path))
    assert history.unreadable == 3
    assert history.find_past([make_result(0, "a", 1.0)]) == {MEMORY: {"a": [3.0]}}


def test_history_that_is_a_folder_is_said_with_the_cure(tmp_path: Path) -> None:
    for call in (read_history, lambda path: append_history(path, PreflightLine(wall_s=1.0, devices={}, rates={}))):
        with pytest.raises(UnavailableError, match=r"cannot be (read|written): Is a directory\. Name another file"):
            call(str(tmp_path))


def test_names_that_are_no_hosts_are_kept_apart() -> None:
    names = ("node-1", "-w evil", "a\nb", "n2.example")
    assert find_hosts(make_report(named=names)) == (["node-1", "n2.example"], ["-w evil", "a\nb"])
