"""Places in the user's code that led to operators and kernels."""

from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.source_links import make_link, source_cell
from rankscope.collector.reports.trace_page import render_page
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.reports.trace_text import render_section
from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import RankReport, SourceRow
from rankscope.collector.traces.sources import SOURCES_MAX, is_users
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json


def frame(name: str, start_us: int, length_us: int) -> Event:
    return event("python_function", name, start_us, length_us)


# step calls two functions, through torch; each calls aten::mm, which launches 10 us in attend and 30 us in project.
# On another thread, meanwhile, a backward operator launches 5 us.
KNOWN = (
    frame("train.py(54): step", 0, 100),
    frame("model.py(7): attend", 10, 20), frame("torch/nn/functional.py(2): linear", 11, 10),
    frame("<built-in function linear>", 12, 8),
    event("cpu_op", "aten::mm", 13, 5), launch(14, 1), kernel("gemm", 100, 10, correlation=1),
    frame("model.py(20): project", 40, 20), frame("torch/nn/functional.py(2): linear", 41, 10),
    event("cpu_op", "aten::mm", 43, 5), launch(44, 2), kernel("gemm", 120, 30, correlation=2),
    event("cpu_op", "MmBackward0", 70, 5, tid=2), launch(71, 3, tid=2), kernel("gemm", 160, 5, correlation=3),
    event("cpu_op", "aten::add", 300, 5), launch(301, 4), kernel("add", 310, 4, correlation=4),
)  # fmt: skip


def rank_of(folder: Path, *events: Event) -> RankReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    (rank,) = analyze(str(folder)).ranks
    return rank


def places(sources: list[SourceRow]) -> list[tuple[str, int, int]]:
    return [(f"{one.file}:{one.line} {one.function}", one.count, one.total_ns) for one in sources]


def test_kernel_has_the_innermost_functions_that_launched_it(tmp_path: Path) -> None:
    kernels = {row.name: row for row in rank_of(tmp_path, *KNOWN).kernels}
    assert places(kernels["gemm"].sources) == [
        ("model.py:20 project", 1, 30_000), ("model.py:7 attend", 1, 10_000), ("train.py:54 step", 1, 5_000),
    ]  # fmt: skip
    assert kernels["add"].sources == []


def test_operator_has_the_functions_that_called_it(tmp_path: Path) -> None:
    operators = {row.name: row for row in rank_of(tmp_path, *KNOWN).operators}
    assert places(operators["aten::mm"].sources) == [
        ("model.py:20 project", 1, 30_000), ("model.py:7 attend", 1, 10_000),
    ]  # fmt: skip


def test_operator_of_the_backward_has_what_called_backward(tmp_path: Path) -> None:
    operators = {row.name: row for row in rank_of(tmp_path, *KNOWN).operators}
    assert places(operators["MmBackward0"].sources) == [("train.py:54 step", 1, 5_000)]


def test_with_modules_the_backward_has_the_place_of_its_forward(tmp_path: Path) -> None:
    numbers = {"Sequence number": 7, "Fwd thread id": 0}
    events = [one | {"args": {**one["args"], **numbers}} if one["name"] == "aten::mm" else one for one in KNOWN]
    backward = {"Sequence number": 7, "Fwd thread id": 1}
    events = [one | {"args": backward} if one["name"] == "MmBackward0" else one for one in events]
    (tmp_path / "rank0.json").write_bytes(to_json(*events))
    (rank,) = analyze(str(tmp_path), modules=True).ranks
    kernels = {row.name: row for row in rank.kernels}
    # The operator that began last with this number is that of project.
    assert places(kernels["gemm"].sources) == [("model.py:20 project", 2, 35_000), ("model.py:7 attend", 1, 10_000)]
    operators = {row.name: row for row in rank.operators}
    assert places(operators["MmBackward0"].sources) == [("model.py:20 project", 1, 5_000)]


def test_without_a_device_operators_are_weighed_by_host_time(tmp_path: Path) -> None:
    hosts = [one for one in KNOWN if one["cat"] in {"python_function", "cpu_op"}]
    operators = {row.name: row for row in rank_of(tmp_path, *hosts).operators}
    assert [one.total_ns for one in operators["aten::mm"].sources] == [5_000, 5_000]


def test_without_stacks_there_are_no_places(tmp_path: Path) -> None:
    plain = [one for one in KNOWN if one["cat"] != "python_function"]
    rank = rank_of(tmp_path, *plain)
    assert all(row.sources == [] for row in rank.operators)
    assert all(row.sources == [] for row in rank.kernels)


def test_old_trace_has_the_places_of_its_stacks(tmp_path: Path) -> None:
    stack = {"Call stack": "torch/nn/functional.py(2): linear;train.py(60): step"}
    called = event("cpu_op", "aten::mm", 0, 9, **stack)
    stackless = event("cpu_op", "aten::mm", 20, 9)
    launches = [launch(1, 1), kernel("gemm", 30, 7, correlation=1), launch(15, 2), kernel("gemm", 40, 2, correlation=2)]
    rank = rank_of(tmp_path, called, stackless, *launches)
    assert places(rank.kernels[0].sources) == [("train.py:60 step", 1, 7_000)]
    assert places(rank.operators[0].sources) == [("train.py:60 step", 1, 7_000)]


def test_stack_of_libraries_only_is_no_place(tmp_path: Path) -> None:
    called = event("cpu_op", "aten::mm", 0, 9, **{"Call stack": "torch/nn/functional.py(2): linear"})
    assert rank_of(tmp_path, called).operators[0].sources == []


def test_only_the_places_with_the_most_time_are_listed(tmp_path: Path) -> None:
    events = []
    for number in range(SOURCES_MAX + 2):
        at = 10 * number
        events += [frame(f"f{number}.py(1): f", at, 9), event("cpu_op", "aten::mm", at + 1, number + 1)]
    (row,) = rank_of(tmp_path, *events).operators
    assert [one.file for one in row.sources] == ["f4.py", "f3.py", "f2.py"]


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("train.py(3): f", True), ("/home/me/torch_models/net.py(3): f", True), ("torchtitan/train.py(3): f", True),
        ("torch/nn/modules/linear.py(3): f", False), ("/x/site-packages/apex/a.py(3): f", False),
        ("transformers/trainer.py(3): f", False), ("datasets/imagenet.py(3): f", True),
        ("threading.py(3): run", False), ("<string>(3): f", False),
        ("<built-in function relu>", False),
    ],
)  # fmt: skip
def test_frames_of_libraries_are_not_the_users(name: str, mine: bool) -> None:
    assert is_users(name) is mine


@pytest.mark.parametrize(
    ("frames", "source"),
    [
        (
            ("torch/nn/functional.py(2): linear", "transformers/trainer.py(3): step", "train.py(1): main"),
            "train.py(1): main",
        ),
        (("torch/nn/functional.py(2): linear", "transformers/trainer.py(3): step"), "transformers/trainer.py(3): step"),
        (("<built-in>", "torch/nn/functional.py(2): linear"), "torch/nn/functional.py(2): linear"),
        ((), None),
    ],
)
def test_wait_has_the_users_place_else_the_librarys(tmp_path: Path, frames: tuple[str, ...], source: str) -> None:
    stack = [frame(name, place, 50 - 2 * place) for place, name in enumerate(reversed(frames))]
    wait = event("cuda_runtime", "cudaStreamSynchronize", 10, 5)
    (row,) = rank_of(tmp_path, *stack, wait, kernel("k", 0, 12)).synchronizations
    assert row.source == source


# -- in the tables and on the page ------------------------------------------------------------------------------------


def test_tables_have_a_column_of_places_where_they_are_known(tmp_path: Path) -> None:
    rank_of(tmp_path, *KNOWN)
    sections = {one.key: one for one in build_sections(analyze(str(tmp_path)), 20)}
    for key in ("operators", "kernels"):
        assert sections[key].columns[-1].head == "source"
    assert sections["kernels"].rows[0][-1].text == "model.py:20 (project) 67 %"
    rank_of(tmp_path, kernel("gemm", 0, 1))
    (kernels,) = (one for one in build_sections(analyze(str(tmp_path)), 20) if one.key == "kernels")
    assert kernels.columns[-1].head == "tensor cores"


def test_page_links_places_by_the_template(tmp_path: Path) -> None:
    rank_of(tmp_path, *KNOWN)
    report = analyze(str(tmp_path))
    page = render_page(report, source_url='https://host/b/"1"/{path}#L{line}')
    assert '<a href="https://host/b/&quot;1&quot;/model.py#L20">model.py:20 (project) 67 %</a>' in page
    assert "model.py:20 (project) 67 %" in render_page(report)
    assert '<a href="javascript' not in render_page(report, source_url="javascript:alert('{path}')")


def test_places_of_a_page_are_escaped(tmp_path: Path) -> None:
    hostile = [frame('x"<b>.py(1): <script>', 0, 9), event("cpu_op", "aten::mm", 1, 5)]
    rank_of(tmp_path, *hostile)
    page = render_page(analyze(str(tmp_path)), source_url="vscode://file/{path}:{line}")
    assert '<a href="vscode://file/x%22%3Cb%3E.py:1">x&quot;&lt;b&gt;.py:1 (&lt;script&gt;)</a>' in page


@pytest.mark.parametrize(
    ("template", "file", "link"),
    [
        ("vscode://file/{path}:{line}", "/home/me/a.py", "vscode://file/home/me/a.py:3"),
        ("https://h/{path}#L{line}", "a\\b.py", "https://h/a/b.py#L3"),
        ("https://h/?f={path}", "/a.py", "https://h/?f=/a.py"),
        ("https://h/{path}", "{line}.py", "https://h/%7Bline%7D.py"),
        ("file:///{path}", "a.py", None),
        (None, "a.py", None),
    ],
)
def test_link_is_made_by_the_template(template: str | None, file: str, link: str | None) -> None:
    assert make_link(template, file, 3) == link


def test_place_with_all_of_the_time_has_no_share() -> None:
    one = SourceRow(file="a.py", line=3, function="f", count=1, total_ns=50)
    assert source_cell([one], 50).text == "a.py:3 (f)"
    assert source_cell([one, one], 200).text == "a.py:3 (f) 50 %"
    assert source_cell([one], None).text == "a.py:3 (f)"


def test_template_without_a_path_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_of(tmp_path, *KNOWN)
    assert main(["analyze", str(tmp_path), "--source-url", "https://host/"]) == 2
    assert "--source-url is 'https://host/'; it must contain {path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--source-url", "idea://open?file={path}", "--html", "x.html"],
            "it must begin with http://, https:// or vscode://",
        ),
        (["--source-url", "https://h/{path}"], "--source-url is given without --html; only the page has links"),
    ],
)
def test_template_that_would_make_no_links_is_refused(
    tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_of(tmp_path, *KNOWN)
    assert main(["analyze", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err


def test_terminal_keeps_the_line_of_a_place_and_cuts_names_first(tmp_path: Path) -> None:
    long = "void at::native::" + "a_long_name_" * 12
    called = [frame("a/rather/deep/folder/with/more/of/them/model.py(120): forward", 0, 9), launch(1, 1)]
    rank_of(tmp_path, *called, kernel(long, 20, 5, correlation=1))
    (kernels,) = (one for one in build_sections(analyze(str(tmp_path)), 20) if one.key == "kernels")
    lines = render_section(kernels, 100)
    assert lines[-1].endswith("  .../model.py:120 (forward)")
    assert len(lines[-1]) <= 100
