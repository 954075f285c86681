"""The tree of modules: forward and backward times, and what belongs to none."""

from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze, modules
from rankscope.collector.traces.modules import BACKWARD_ELSEWHERE, NOT_LAUNCHED, OUTSIDE_MODULES
from rankscope.collector.traces.report import ModuleRow, RankReport
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

TRACES = Path(__file__).parents[3] / "traces"
ENGINE = "autograd::engine::evaluate_function: "


def module(name: str, start_us: int, length_us: int, tid: int = 1) -> Event:
    return event("python_function", f"nn.Module: {name}", start_us, length_us, tid=tid)


def forward(name: str, start_us: int, length_us: int, sequence: int, tid: int = 1) -> Event:
    return event("cpu_op", name, start_us, length_us, tid=tid, **{"Sequence number": sequence, "Fwd thread id": 0})


def backward(name: str, start_us: int, length_us: int, sequence: int, thread: int = 1) -> Event:
    numbers = {"Sequence number": sequence, "Fwd thread id": thread}
    return event("cpu_op", ENGINE + name, start_us, length_us, tid=2, **numbers)


# Net_0 runs 100 us and calls Linear_0 twice (20 us each) and Linear_1 (10 us); it launches 5 us itself. The first
# call's product launches 30 us, the second's 40, that of Linear_1 none. In the backward, on another thread, number 7
# (in Linear_0) launches 60 us, number 9 (in Net_0) 8 us; an accumulation 3 us. The optimizer launches 11 us, a kernel
# of 2 us was launched before the record.
KNOWN = (
    module("Net_0", 0, 100), launch(1, 1), kernel("add", 200, 5, correlation=1),
    module("Linear_0", 10, 20), forward("aten::mm", 12, 10, 7), launch(13, 2), kernel("gemm", 210, 30, correlation=2),
    module("Linear_0", 40, 20), forward("aten::mm", 42, 10, 8), launch(43, 3), kernel("gemm", 250, 40, correlation=3),
    module("Linear_1", 70, 10), forward("aten::add", 90, 5, 9),
    backward("AddBackward0", 300, 4, 9), launch(301, 4, tid=2), kernel("add", 310, 8, correlation=4),
    backward("MmBackward0", 320, 10, 7), launch(321, 5, tid=2), kernel("gemm", 330, 60, correlation=5),
    event("cpu_op", ENGINE + "torch::autograd::AccumulateGrad", 350, 6, tid=2),
    launch(351, 6, tid=2), kernel("add", 400, 3, correlation=6),
    event("cpu_op", "Optimizer.step", 450, 20), launch(451, 7), kernel("adam", 460, 11, correlation=7),
    kernel("earlier", 190, 2, correlation=99),
)  # fmt: skip


def mark(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The same trace as a capture with `modules` writes it: ranges in the place of Python frames."""
    return tuple({**one, "cat": "user_annotation"} if one["cat"] == "python_function" else one for one in events)


def rank_of(folder: Path, *events: Event) -> RankReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    (rank,) = analyze(str(folder), modules=True).ranks
    return rank


def rows_of(folder: Path, *events: Event) -> dict[str, ModuleRow]:
    return {row.path or row.name: row for row in rank_of(folder, *events).modules or ()}


def test_ranges_marked_by_a_capture_are_modules_not_user_ranges(tmp_path: Path) -> None:
    framed, marked = rank_of(tmp_path, *KNOWN), rank_of(tmp_path, *mark(KNOWN))
    assert marked.modules == framed.modules
    assert (marked.user_ranges, marked.warnings) == (framed.user_ranges, framed.warnings)


# Net_0 calls Linear_0, whose forward is repeated in the backward of number 7, with a kernel of 30 us each time; the
# second launch belongs to the operator itself, 60 us.
REPEATED = (
    module("Net_0", 0, 100), module("Linear_0", 10, 20),
    forward("aten::mm", 12, 10, 7), launch(13, 1), kernel("gemm", 200, 30, correlation=1),
    backward("MmBackward0", 300, 100, 7), module("Linear_0", 310, 20, tid=2), module("ReLU_0", 315, 10, tid=2),
    launch(318, 2, tid=2), kernel("gemm", 400, 30, correlation=2),
    launch(350, 3, tid=2), kernel("gemm", 450, 60, correlation=3),
)  # fmt: skip


def test_forward_repeated_in_backward_belongs_to_its_call_site(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *mark(REPEATED))
    assert {path: (row.count, row.depth) for path, row in rows.items()} == {
        "Net_0": (1, 0), "Net_0/Linear_0": (2, 1), "Net_0/Linear_0/ReLU_0": (1, 2),
    }  # fmt: skip
    # forward self and total, backward self and total
    assert on_device(rows["Net_0/Linear_0"]) == (30, 60, 60, 60)
    assert on_device(rows["Net_0/Linear_0/ReLU_0"]) == (30, 30, 0, 0)


@pytest.mark.parametrize("elsewhere", [(), (module("Other_0", 120, 40), module("Linear_0", 130, 20))])
def test_repeated_forward_without_a_single_caller_is_a_root(tmp_path: Path, elsewhere: tuple[Event, ...]) -> None:
    first = () if not elsewhere else REPEATED[:2]
    rows = rows_of(tmp_path, *mark((*first, *elsewhere, *REPEATED[5:8], module("Net_0", 500, 1))))
    assert (rows["Linear_0"].count, rows["Linear_0"].depth) == (1, 0)


def test_trace_with_module_frames_and_ranges_counts_calls_once(tmp_path: Path) -> None:
    ranges = [one for one in mark(KNOWN) if one["cat"] == "user_annotation"]
    assert rank_of(tmp_path, *KNOWN, *ranges).modules == rank_of(tmp_path, *KNOWN).modules


def on_device(row: ModuleRow) -> tuple[int | None, ...]:
    times = (row.device_self_ns, row.device_total_ns, row.backward_device_self_ns, row.backward_device_total_ns)
    return tuple(value and value // 1_000 for value in times)


def on_host(row: ModuleRow) -> tuple[int | None, ...]:
    times = (row.host_self_ns, row.host_total_ns, row.backward_host_self_ns, row.backward_host_total_ns)
    return tuple(value and value // 1_000 for value in times)


def test_device_time_goes_to_the_innermost_module(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *KNOWN)
    assert {path: on_device(row) for path, row in rows.items()} == {
        "Net_0": (5, 75, 8, 68),
        "Net_0/Linear_0": (70, 70, 60, 60),
        "Net_0/Linear_1": (0, 0, 0, 0),
        OUTSIDE_MODULES: (11, 11, 0, 0),
        BACKWARD_ELSEWHERE: (0, 0, 3, 3),
        NOT_LAUNCHED: (2, 2, 0, 0),
    }


def test_host_time_of_forward_and_backward(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *KNOWN)
    assert on_host(rows["Net_0"]) == (50, 100, 4, 14)
    assert on_host(rows["Net_0/Linear_0"]) == (40, 40, 10, 10)
    assert on_host(rows[BACKWARD_ELSEWHERE]) == (None, None, 6, 6)
    assert [rows[path].count for path in ("Net_0", "Net_0/Linear_0", OUTSIDE_MODULES)] == [1, 2, None]


def test_operators_are_counted_where_a_forward_calls_them(tmp_path: Path) -> None:
    # aten::mm has one inside, which counts no more; a product of Net_0 has a module inside, whose operator does.
    inside = [event("cpu_op", "aten::empty", 14, 2), event("cpu_op", "Checkpoint", 80, 8), module("ReLU_0", 82, 4)]
    rows = rows_of(tmp_path, *KNOWN, *inside, event("cpu_op", "aten::relu", 83, 2))
    assert {path: (row.operator_self_count, row.operator_count) for path, row in rows.items()} == {
        "Net_0": (2, 5), "Net_0/Linear_0": (2, 2), "Net_0/Linear_1": (0, 0), "Net_0/ReLU_0": (1, 1),
        OUTSIDE_MODULES: (None, None), BACKWARD_ELSEWHERE: (None, None), NOT_LAUNCHED: (None, None),
    }  # fmt: skip


def test_repeated_forwards_operators_count_as_those_of_a_call(tmp_path: Path) -> None:
    again = forward("aten::mm", 312, 2, 12, tid=2)
    rows = rows_of(tmp_path, *mark(REPEATED), again)
    assert (rows["Net_0/Linear_0"].operator_self_count, rows["Net_0"].operator_count) == (2, 2)


def test_backward_belongs_to_the_operator_that_began_last(tmp_path: Path) -> None:
    seen_as_next = forward("aten::t", 2, 1, 7)  # in Net_0: it saw 7 as the next number, aten::mm then took it
    assert on_device(rows_of(tmp_path, *KNOWN, seen_as_next)["Net_0/Linear_0"]) == (70, 70, 60, 60)


def test_numbers_of_another_thread_are_not_taken(tmp_path: Path) -> None:
    other = [module("Other_0", 60, 50, tid=3), forward("aten::mm", 61, 5, 7, tid=3)]
    rows = rows_of(tmp_path, *KNOWN, *other)
    assert on_device(rows["Net_0/Linear_0"])[2] == 60
    assert on_device(rows["Other_0"])[2] == 0


def test_backward_of_what_ran_before_the_record_is_of_no_module(tmp_path: Path) -> None:
    early = [backward("MmBackward0", 500, 5, 3), launch(501, 8, tid=2), kernel("gemm", 510, 9, correlation=8)]
    assert on_device(rows_of(tmp_path, *KNOWN, *early)[BACKWARD_ELSEWHERE]) == (0, 0, 12, 12)


def test_backward_of_a_loss_is_outside_of_modules(tmp_path: Path) -> None:
    loss = [forward("aten::mse_loss", 110, 5, 12), backward("MseLossBackward0", 290, 5, 12), launch(291, 8, tid=2)]
    rows = rows_of(tmp_path, *KNOWN, *loss, kernel("mse", 295, 4, correlation=8))
    assert on_device(rows[OUTSIDE_MODULES]) == (11, 11, 4, 4)


def test_forward_again_in_the_backward_is_forward(tmp_path: Path) -> None:
    recomputed = [module("Linear_9", 322, 4, tid=2), launch(323, 8, tid=2), kernel("gemm", 410, 7, correlation=8)]
    assert on_device(rows_of(tmp_path, *KNOWN, *recomputed)["Linear_9"]) == (7, 7, 0, 0)


def test_frames_with_thread_ids_of_their_own_are_found(tmp_path: Path) -> None:
    moved = [one | {"tid": 77} if one["cat"] == "python_function" else one for one in KNOWN]
    plain = {path: on_device(row) for path, row in rows_of(tmp_path, *KNOWN).items()}
    assert {path: on_device(row) for path, row in rows_of(tmp_path, *moved).items()} == plain


def test_without_a_device_there_are_host_times_only(tmp_path: Path) -> None:
    hosts = [one for one in KNOWN if one["cat"] in {"python_function", "cpu_op"}]
    rows = rows_of(tmp_path, *hosts)
    assert on_device(rows["Net_0"]) == (None, None, None, None)
    assert on_host(rows["Net_0"]) == (50, 100, 4, 14)


def test_modules_without_numbers_of_autograd_have_a_forward(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, module("Net_0", 0, 10), launch(1, 1), kernel("k", 20, 5, correlation=1))
    assert {path: on_device(row) for path, row in rows.items()} == {"Net_0": (5, 5, 0, 0)}


def test_backward_without_any_forward_is_of_no_module(tmp_path: Path) -> None:
    events = [backward("MmBackward0", 20, 5, 3), launch(21, 1, tid=2), kernel("k", 30, 4, correlation=1)]
    assert on_device(rows_of(tmp_path, module("Net_0", 0, 10), *events)[BACKWARD_ELSEWHERE]) == (0, 0, 4, 4)


def test_most_costly_siblings_come_first(tmp_path: Path) -> None:
    costs = [module("A_0", 0, 5), module("B_0", 10, 30), module("C_0", 11, 2), module("D_0", 20, 9)]
    rows = rank_of(tmp_path, *costs).modules or []
    assert [row.path for row in rows] == ["B_0", "B_0/D_0", "B_0/C_0", "A_0"]


@pytest.mark.parametrize("name", ["mi300x_resnet18", "h100_bert_small"])
def test_self_times_sum_to_all_device_work(name: str) -> None:
    (rank,) = analyze(str(TRACES / f"{name}.json.gz"), modules=True).ranks
    found = sum((row.device_self_ns or 0) + (row.backward_device_self_ns or 0) for row in rank.modules or [])
    assert found == sum(row.total_ns for row in rank.kernels) + sum(row.total_ns for row in rank.copies)


def test_rows_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MODULES_MAX", 2)
    rank = rank_of(tmp_path, *KNOWN)
    assert [row.path for row in rank.modules or [] if row.path is not None] == ["Net_0", "Net_0/Linear_0"]
    assert any(warning.startswith("1 modules left out") for warning in rank.warnings)


def test_modules_are_not_read_unless_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_of(tmp_path, *KNOWN)
    (rank,) = analyze(str(tmp_path)).ranks
    assert rank.modules is None
    assert main(["analyze", str(tmp_path)]) == 0
    assert "\nMODULES\n" not in capsys.readouterr().out
    assert main(["analyze", str(tmp_path), "--modules"]) == 0
    assert "\nMODULES\n" in capsys.readouterr().out


def test_without_frames_of_modules_the_table_says_how_to_record(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, kernel("k", 0, 1))
    assert (
        rank.warnings.count(
            "the trace has no Python frames: no modules; record with with_stack=True, or capture with modules"
        )
        == 1
    )
    (found,) = (one for one in build_sections(analyze(str(tmp_path), modules=True), 20) if one.key == "modules")
    assert (found.rows, found.reason) == (
        (),
        "The traces have no Python frames: record with with_stack=True, or capture with modules.",
    )


def test_stacks_without_a_module_are_not_taken_for_missing_ones(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, event("python_function", "train.py(3): main", 0, 9), kernel("k", 0, 1))
    assert not any("no Python frames" in warning for warning in rank.warnings)
    (found,) = (one for one in build_sections(analyze(str(tmp_path), modules=True), 20) if one.key == "modules")
    assert (found.rows, found.reason) == ((), "No nn.Module was called in a trace that has Python frames.")


def test_table_shows_the_tree_cut_to_the_most_costly(tmp_path: Path) -> None:
    rank_of(tmp_path, *KNOWN)
    (found,) = (one for one in build_sections(analyze(str(tmp_path), modules=True), 2) if one.key == "modules")
    assert [row[0].text for row in found.rows] == [
        "Net_0", ". Linear_0", OUTSIDE_MODULES, BACKWARD_ELSEWHERE, NOT_LAUNCHED,
    ]  # fmt: skip
    assert [cell.text for cell in found.rows[1][:7]] == [". Linear_0", "2", "2", "0.070", "0.070", "0.060", "0.060"]
    assert found.left_out == 1
