"""`rankscope.agent.profile_model` against counts by hand, and torch's own counter beside it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rankscope import agent
from rankscope.agent.profiled_model import main, profile_model
from rankscope.collector.commands.main import main as run_command
from tests.flop_models import BLOCK_PRODUCTS, BLOCK_SCORES, MODELS, B, Known, make_tensor_parallel, one_of_two_ranks

LAST_PRODUCT = B * 32 * 2 * 256 * 64
"""The last one of a block: a checkpoint that is not reentrant does not make it again."""
ABOVE = {"1-d, 3-d and transposed convolutions", "2-d convolutions: plain, grouped, depthwise, dilated"}
"""Of which torch counts the gradient of a grouped convolution's weights for all groups with each other."""

BELOW = {
    "transformer block, SDPA", "attention of grouped queries, masked", "block, checkpoint (reentrant)",
    "block, checkpoint (not reentrant)",
}  # fmt: skip
"""Of which torch leaves out the attention of CPUs."""


def own_flops_of(name: str, known: Known) -> tuple[int, int]:
    skipped = LAST_PRODUCT if name == "block, checkpoint (not reentrant)" else 0
    return known.forward, known.backward + known.recompute - skipped


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_by_hand(name: str) -> None:
    known = MODELS[name]()
    found = profile_model(known.model, known.inputs, passes=1)
    assert (found.whole.forward_flops, found.whole.backward_flops) == own_flops_of(name, known)
    assert found.uncounted == {}


def test_rank_of_a_tensor_parallel_model_counts_its_own_part() -> None:
    with one_of_two_ranks():
        known = make_tensor_parallel()
        found = profile_model(known.model, known.inputs, passes=1)
    assert (found.whole.forward_flops, found.whole.backward_flops) == (known.forward, known.backward)
    assert found.uncounted == {}
    assert {one.path: one.forward_flops for one in found.modules} == {
        "": known.forward, "0": known.forward // 2, "1": 0, "2": known.forward // 2,
    }  # fmt: skip


@pytest.mark.rest("a comparison with another counter")
@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("name", [name for name in MODELS if "LSTM" not in name and "bf16" not in name])
def test_counter_of_torch_agrees_but_for_what_it_does_not_know(name: str) -> None:
    known = MODELS[name]()
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        known.run()
    difference = counter.get_total_flops() - sum(own_flops_of(name, known))
    assert (difference > 0, difference < 0) == (name in ABOVE, name in BELOW)


def test_modules_have_their_share_by_attribute_path() -> None:
    known = MODELS["transformer block, SDPA"]()
    found = profile_model(known.model, known.inputs, passes=1)
    rows = {one.path: one for one in found.modules}
    assert list(rows) == ["", "attention", "attention.qkv", "attention.out", "norm", "up", "down"]
    assert rows["attention.qkv"].forward_flops == B * 32 * 2 * 64 * 192
    assert rows["attention"].forward_flops == B * 32 * 2 * (64 * 192 + 64 * 64) + 2 * BLOCK_SCORES
    # Each product is made again for both of its factors, and attention makes its scores again.
    assert rows["attention"].backward_flops == 2 * B * 32 * 2 * (64 * 192 + 64 * 64) + 5 * BLOCK_SCORES
    assert rows[""].forward_macs == (BLOCK_PRODUCTS + 2 * BLOCK_SCORES) // 2
    # 64 x 192 + 64 x 64 without a bias, a norm of 2 x 64, 64 x 256 + 256, 256 x 64 + 64.
    assert [rows[path].parameters for path in ("attention", "norm", "up", "down", "")] == [
        16_384, 128, 16_640, 16_448, 49_600,
    ]  # fmt: skip
    assert (rows["attention.qkv"].depth, found.batch) == (2, B)
    assert [one.path for one in found.find_top("parameters", 1, 2)] == ["up", "down"]
    assert all(one.forward_ns for one in found.modules)


def test_shared_parameters_count_once_and_ignored_modules_never() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    found = profile_model(model, torch.ones(2, 8), passes=1, ignore=["ReLU"])
    assert found.whole.parameters == 64
    assert [one.path for one in found.modules] == ["", "0", "2"]


def test_model_is_left_as_it_was_unless_an_optimizer_is_given() -> None:
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    found = profile_model(model, torch.ones(3, 4), passes=1)
    assert torch.equal(model.weight, before)
    assert (model.weight.grad, found.step_ns) == (None, None)
    assert len(model._forward_hooks) + len(model._forward_pre_hooks) == 0
    found = profile_model(model, torch.ones(3, 4), passes=1, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert found.step_ns is not None
    assert not torch.equal(model.weight, before)


def test_forward_alone_needs_no_gradients() -> None:
    found = profile_model(nn.Linear(4, 2), {"input": torch.ones(3, 4)}, backward=False, passes=1)
    assert (found.backward_ns, found.whole.backward_flops, found.whole.forward_flops) == (None, 0, 2 * 3 * 4 * 2)


@pytest.mark.parametrize("numbers", [{"passes": 0}, {"dp": 0}, {"mp": -1}])
def test_numbers_below_one_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="each must be 1 or more"):
        profile_model(nn.Linear(4, 2), torch.ones(3, 4), **numbers)


def test_sizes_of_parallelism_multiply_samples_and_parameters() -> None:
    one = profile_model(nn.Linear(4, 2), torch.ones(3, 4), passes=1)._replace(forward_ns=10**9, backward_ns=2 * 10**9)
    assert one.samples_per_s == 1.0  # 3 samples in 3 s
    several = one._replace(dp=4, mp=2)
    assert several.samples_per_s == 4.0
    assert "of all 2 parts of the model 20" in several.render()
    assert "samples per second           4.0 of 4 replicas, without communication" in several.render()


def test_operator_that_may_multiply_is_named() -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(x, x)

    found = profile_model(Product(), torch.ones(3, 4), backward=False, passes=1)
    assert list(found.uncounted) == ["aten::_cdist_forward"]
    assert "not counted                  aten::_cdist_forward (1 calls)" in found.render()


def test_function_of_a_module_is_profiled_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small_model.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.ones(3, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run_command(["profile-model", "small_model:make", "--depth", "1", "--passes", "1"]) == 0
    out = capfd.readouterr().out
    assert "forward                      24 MACs, 48 FLOPs" in out
    assert "  0 (Linear)" in out


@pytest.mark.parametrize("function", ["nothing", "no_such_module:make", "json:no_such_function"])
def test_function_that_is_not_there_is_one_error(function: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([function])
    assert raised.value.code == 2
    assert repr(function) in capsys.readouterr().err


def test_it_is_a_call_of_the_agent() -> None:
    assert agent.profile_model is profile_model
    with pytest.raises(AttributeError, match="no attribute 'profiled'"):
        agent.profiled  # noqa: B018


def test_json_has_every_module_and_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made.py").write_text("import torch\ndef make(): return torch.nn.Linear(3, 2), torch.ones(4, 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "found.json"
    assert main(["made:make", "--json", "--json-file", str(path), "--passes", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(path.read_text()) == found
    # 4 rows of 3 values, each by 2 columns: 24 multiply-accumulates of 2 FLOPs.
    (whole,) = found["modules"]
    assert (whole["kind"], whole["parameters"], whole["forward_flops"], found["batch"]) == ("Linear", 8, 48, 4)


CHATTY = """
import os, torch
print("imported")
class Chatty(torch.nn.Linear):
    def forward(self, rows):
        print("called")
        return super().forward(rows)
def make():
    print("made")
    return Chatty(3, 2), torch.ones(4, 3)
"""


@pytest.mark.parametrize("prints_json", [True, False])
def test_what_the_model_prints_is_no_json(
    prints_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"chatty_{prints_json}".lower()
    (tmp_path / f"{module}.py").write_text(CHATTY)
    monkeypatch.syspath_prepend(tmp_path)
    assert main([f"{module}:make", "--passes", "1", *(["--json"] if prints_json else [])]) == 0
    said = capsys.readouterr()
    prints = {"imported", "made", "called"}
    assert prints <= set((said.err if prints_json else said.out).split())
    if prints_json:
        assert json.loads(said.out)["modules"][0]["kind"] == "Chatty"


def test_file_that_cannot_be_written_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lost.py").write_text("import torch\ndef make(): return torch.nn.Linear(3, 2), torch.ones(4, 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as raised:
        main(["lost:make", "--passes", "1", "--json-file", str(tmp_path / "no" / "found.json")])
    assert raised.value.code == 2
    assert "found.json (from --json-file) cannot be written: No such file or directory" in capsys.readouterr().err


def test_json_is_written_to_a_descriptor_of_the_shell(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "piped.py").write_text("import torch\ndef make(): return torch.nn.Linear(3, 2), torch.ones(4, 3)\n")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "found.json"
    with path.open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        words = ["piped:make", "--passes", "1", "--json-file", f"/dev/fd/{file.fileno()}"]
        assert run_command(["profile-model", *words]) == 0
    assert json.loads(path.read_text())["batch"] == 4
    assert "forward" in capfd.readouterr().out


# -- least times by the peaks of a device ----------------------------------------------------------------------------

H100 = "NVIDIA H100 80GB HBM3"
"""989.4 TFLOP/s in bf16, 67 in fp32, 494.7 in TF32, and 3,350 GB/s."""


def least_ns(rows: int, dtype: torch.dtype, **kwargs: Any) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return by operator, pass and type the least time of a square product, and that of calls bound by memory."""
    model = nn.Linear(1024, 1024, bias=False, dtype=dtype)
    found = profile_model(model, torch.ones(rows, 1024, dtype=dtype), passes=1, device=H100, **kwargs)
    return {(one.operator, one.phase, one.dtype): (one.least_ns, one.memory_ns) for one in found.bounds}


def test_large_product_is_bound_by_compute() -> None:
    # 2 x 1024^3 FLOPs at 989.4 TFLOP/s are 2,170.5 ns; three matrices of 2 MiB at 3,350 GB/s 1,878.
    found = least_ns(1024, torch.bfloat16, backward=False)
    whole_ns, memory_ns = found["aten::mm", "forward", "bf16"]
    assert (round(whole_ns, 2), memory_ns) == (2_170.49, 0)


def test_product_of_one_row_is_bound_by_memory_in_both_passes() -> None:
    # (1024 x 1024 + 2 x 1024) numbers of 2 bytes at 3,350 GB/s; the gradient of the weights moves as many.
    found = least_ns(1, torch.bfloat16)
    for phase in ("forward", "backward"):
        assert list(found["aten::mm", phase, "bf16"]) == pytest.approx([627.24, 627.24], abs=0.01)


def test_single_precision_is_computed_as_torch_is_set_to() -> None:
    before = torch.get_float32_matmul_precision()
    assert least_ns(1024, torch.float32, backward=False)["aten::mm", "forward", "fp32"][0] == pytest.approx(
        32_051.99, abs=0.01
    )
    try:
        torch.set_float32_matmul_precision("high")
        found = least_ns(1024, torch.float32, backward=False)
    finally:
        torch.set_float32_matmul_precision(before)
    # 2 x 1024^3 at 494.7 TFLOP/s.
    assert found["aten::mm", "forward", "tf32"][0] == pytest.approx(4_340.98, abs=0.01)


def test_least_times_are_shown_and_told_apart_from_measured_ones() -> None:
    model, rows = nn.Linear(1024, 1024, bias=False, dtype=torch.bfloat16), torch.ones(1, 1024, dtype=torch.bfloat16)
    text = profile_model(model, rows, passes=1, backward=False, device=H100).render()
    assert f"least time by the peaks of {H100}: forward 627 ns" in text
    assert "aten::mm bf16, forward: 627 ns in 1 call, 100 % of it bound by memory" in text
    assert "by the peaks" not in profile_model(model, rows, passes=1, backward=False).render()


def test_device_that_is_not_known_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="the peaks of 'abacus' are not known"):
        profile_model(nn.Linear(2, 2), torch.ones(1, 2), device="abacus")
    assert run_command(["profile-model", "made:make", "--device", "abacus"]) == 2
    assert "the peaks of 'abacus' are not known; name it as torch does" in capfd.readouterr().err
