"""The block of CONTRIBUTING.md that captures the frames of a real training and replays them, run as it is written."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0


def test_captured_frames_are_replayed_with_all_their_steps() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    ranks = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert [rank for rank, _ in ranks] == [0, 1]
    assert min(steps for _, steps in ranks) > 0
    assert len({steps for _, steps in ranks}) == 1
