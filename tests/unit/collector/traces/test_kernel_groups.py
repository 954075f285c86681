"""Device time by groups of the user's own."""

from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.measure.errors import SettingError
from tests.unit.measure.written_traces import Event, event, kernel, to_json

TRACES = Path(__file__).parents[3] / "traces"

# 30 us of matrix products by two names, 20 us of attention, whose name has gemm in it too, 5 us of others, 7 us copied.
KNOWN = (
    kernel("sgemm_a", 0, 10), kernel("sgemm_b", 20, 15), kernel("sgemm_b", 40, 5), kernel("flash_gemm", 60, 20),
    kernel("relu", 90, 5), event("gpu_memcpy", "Memcpy HtoD", 100, 7, device=0, stream=7),
)  # fmt: skip
PATTERNS = {"attention": "flash_", "gemm": ["gemm", "cutlass"], "never": ["nothing"]}


def write(folder: Path, *events: Event) -> str:
    (folder / "rank0.json").write_bytes(to_json(*events))
    return str(folder)


def groups_of(path: str, patterns: Any) -> dict[str | None, tuple[int, int, int]]:
    (rank,) = analyze(path, kernel_groups=patterns).ranks
    return {row.group: (row.count, row.name_count, row.total_ns // 1_000) for row in rank.kernel_groups or []}


def test_first_pattern_found_decides_and_the_rest_is_other(tmp_path: Path) -> None:
    assert groups_of(write(tmp_path, *KNOWN), PATTERNS) == {
        "attention": (1, 1, 20), "gemm": (3, 2, 30), "never": (0, 0, 0), None: (2, 2, 12),
    }  # fmt: skip


def test_order_of_the_groups_matters(tmp_path: Path) -> None:
    found = groups_of(write(tmp_path, *KNOWN), {"gemm": "gemm", "attention": "flash_"})
    assert (found["gemm"], found["attention"]) == ((4, 3, 50), (0, 0, 0))


def test_groups_sum_to_all_device_work() -> None:
    (rank,) = analyze(str(TRACES / "a100_nccl_2ranks_r0.json.gz"), kernel_groups={"conv": "fprop|dgrad|wgrad"}).ranks
    whole_ns = sum(row.total_ns for row in rank.kernels) + sum(row.total_ns for row in rank.copies)
    assert sum(row.total_ns for row in rank.kernel_groups or []) == whole_ns


def test_without_a_device_there_are_no_groups(tmp_path: Path) -> None:
    assert groups_of(write(tmp_path, event("cpu_op", "aten::mm", 0, 5)), PATTERNS) == {}


def test_device_time_is_summed_by_class_unless_groups_are_given(tmp_path: Path) -> None:
    names = ("ampere_sgemm_32x32", "flash_fwd_kernel", "layer_norm_x", "vectorized_elementwise_kernel", "mine")
    work = [kernel(name, 100 * place, 10 + place, correlation=place) for place, name in enumerate(names)]
    # 5: a communicating kernel for 20 us, 6: a copy for 7 us.
    work += [kernel("ncclDevKernel_x", 600, 20, correlation=5)]
    work += [event("gpu_memcpy", "Memcpy DtoD", 700, 7, device=0, stream=7)]
    rows = analyze(write(tmp_path, *work)).ranks[0].kernel_groups or []
    assert [(row.group, row.total_ns // 1_000) for row in rows] == [
        ("gemm", 10), ("attention", 11), ("norm", 12), ("elementwise", 13), ("communication", 20), ("copy", 7),
        (None, 14),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": "("}, "kernel_groups: a is '(', which is not a valid regular expression: "),
        ({"a": []}, "kernel_groups: a is []; it must be a regular expression, or a list of them"),
        ({"a": {"b": "c"}}, "kernel_groups: a is {'b': 'c'}; it must be"),
        ({"a": ["x", 3]}, "kernel_groups: a is ['x', 3]; it must be"),
    ],
)
def test_what_is_no_pattern_is_one_clear_error(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(SettingError) as raised:
        analyze(write(tmp_path, *KNOWN), kernel_groups=given)
    assert str(raised.value).startswith(message)


# -- the command ------------------------------------------------------------------------------------------------------


def test_groups_of_a_file_are_printed_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, groups = write(tmp_path, *KNOWN), tmp_path / "groups.toml"
    groups.write_text('flash = ["flash_"]\ngemm = ["sgemm_a", "sgemm_b"]\n')
    assert main(["analyze", path, "--kernel-groups", str(groups)]) == 0
    lines = capsys.readouterr().out.partition("CLASSES OF KERNELS")[2].splitlines()[5:8]
    assert [line.split()[:2] for line in lines] == [["gemm", "3"], ["flash", "1"], ["other", "(in"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gemm", "is not a TOML file: "),
        ('gemm = "("', "groups.toml (from --kernel-groups): gemm is '(', which is not a valid regular expression"),
        (None, "groups.toml (from --kernel-groups) cannot be read: No such file or directory"),
    ],
)
def test_bad_file_of_groups_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    groups = tmp_path / "groups.toml"
    if text is not None:
        groups.write_text(text)
    assert main(["analyze", write(tmp_path, *KNOWN), "--kernel-groups", str(groups)]) == 2
    found = capsys.readouterr().err
    assert message in found
    assert len(found.splitlines()) == 1


def test_table_has_all_groups_by_time_and_other_last(tmp_path: Path) -> None:
    report = analyze(write(tmp_path, *KNOWN), kernel_groups=PATTERNS)
    (found,) = (one for one in build_sections(report, 1) if one.key == "kernel_groups")
    assert [[cell.text for cell in row] for row in found.rows] == [
        ["gemm", "3", "2", "0.030", "48.4"], ["attention", "1", "1", "0.020", "32.3"],
        ["never", "0", "0", "0.000", "0.0"], ["other (in no group)", "2", "2", "0.012", "19.4"],
    ]  # fmt: skip
