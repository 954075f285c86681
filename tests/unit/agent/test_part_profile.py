"""`rankscope.agent.profile`: a part of a script, as `with` and as decorator, with the torch of this environment."""

from pathlib import Path

import pytest
import torch

from rankscope import agent
from rankscope.agent.part_profile import find_activities, find_rank, profile
from rankscope.collector.traces import analyze

MATRIX = torch.ones(8, 8)


def operators_of(path: Path | None) -> dict[str, int]:
    assert path is not None
    (rank,) = analyze(str(path)).ranks
    return {row.name: row.count for row in rank.operators}


def test_part_of_a_script_is_written_at_its_end(tmp_path: Path) -> None:
    one = agent.profile(tmp_path)
    MATRIX @ MATRIX
    with one:
        MATRIX @ MATRIX
        MATRIX @ MATRIX
        assert one.file is None
    assert one.file == tmp_path / "rank0-1.pt.trace.json.gz"
    assert [path.name for path in tmp_path.iterdir()] == ["rank0-1.pt.trace.json.gz"]
    assert operators_of(one.file)["aten::mm"] == 2


def test_each_call_of_a_function_has_a_file(tmp_path: Path) -> None:
    @profile(tmp_path)
    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right

    assert torch.equal(add(MATRIX, MATRIX), 2 * MATRIX)
    add(MATRIX, right=MATRIX)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rank0-1.pt.trace.json.gz", "rank0-2.pt.trace.json.gz",
    ]  # fmt: skip
    assert operators_of(tmp_path / "rank0-2.pt.trace.json.gz")["aten::add"] == 1


def divide(_matrix: torch.Tensor) -> float:
    return 1 / 0


def test_error_of_the_part_passes_and_its_trace_is_kept(tmp_path: Path) -> None:
    one = profile(tmp_path)
    with pytest.raises(ZeroDivisionError), one:
        divide(MATRIX @ MATRIX)
    assert operators_of(one.file)["aten::mm"] == 1


def test_nothing_is_recorded_inside_of_another_profiler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as outer, profile(tmp_path):
        MATRIX @ MATRIX
    assert "torch's profiler is on already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert any(one.key == "aten::mm" for one in outer.key_averages())


def test_folder_that_cannot_be_written_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with profile(tmp_path / "file"):
        MATRIX @ MATRIX
    assert "nothing is recorded into" in capsys.readouterr().err


def test_generator_function_is_left_as_it_is(tmp_path: Path) -> None:
    def count() -> object:
        yield 1

    assert profile(tmp_path)(count) is count


class _Torch:
    """A torch that knows CUDA, as far as `find_activities` looks."""

    class profiler:  # noqa: N801 - as torch names it
        ProfilerActivity = torch.profiler.ProfilerActivity

        @staticmethod
        def supported_activities() -> set[object]:
            return {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}


def test_host_and_device_are_chosen_apart() -> None:
    kinds = torch.profiler.ProfilerActivity
    assert find_activities(_Torch, host=True, device=False) == [kinds.CPU]
    assert find_activities(_Torch, host=False, device=True) == [kinds.CUDA]
    assert find_activities(_Torch, host=True, device=True) == [kinds.CPU, kinds.CUDA]
    with pytest.raises(ValueError, match="neither a host nor a device is left"):
        find_activities(_Torch, host=False, device=False)


def test_rank_of_the_launcher_is_in_the_name() -> None:
    assert find_rank({}, {"RANK": "12"}) == 12
    assert find_rank({"torch.distributed": torch.distributed}, {"RANK": "x"}) == 0
