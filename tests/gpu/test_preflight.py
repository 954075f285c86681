"""The pre-flight of one rank on a real GPU: every check has values, and NVML answers."""

import json
from pathlib import Path

import pytest
import torch

from rankscope.agent.preflight.checks import CUDA, NODE_ALL_REDUCE, PAIRS, list_checks
from tests.integration.serving import find_fixed_port
from tests.integration.torchrun import ALONE, python, run

pytestmark = pytest.mark.gpu

DEADLINE_S = 180.0


def test_every_check_of_a_gpu_has_values(tmp_path: Path) -> None:
    path = tmp_path / "preflight.json"
    given = ["--budget-s", "20", "--json-file", str(path), "--disk-folder", str(tmp_path)]
    environment = {**ALONE, "MASTER_PORT": str(find_fixed_port())}
    ended = run(python("-m", "rankscope.agent.preflight", *given), environment, deadline_s=DEADLINE_S)
    assert ended.exit_code == 3, ended.stderr  # one rank, and no history
    report = json.loads(path.read_text())
    (result,) = report["results"]
    assert result["device"] == torch.cuda.get_device_name(0)
    values = {name: measured["values"] for name, measured in result["checks"].items()}
    alone = [check.name for check in list_checks(CUDA) if check.name not in {NODE_ALL_REDUCE, PAIRS}]
    assert [name for name in alone if not values.get(name)] == []
    assert max(values["matmul_bfloat16"]) > max(values["matmul_float32"])  # tensor cores
    assert max(values["memory"]) > max(values["to_device"])
    assert report["took_s"] < 30
