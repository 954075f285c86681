"""The commands of docs/quickstart.md, in one shell, with its script. The one with `-m` is the README's too, and tried
in test_first_minutes.py.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.serving import find_fixed_port

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"
BLOCKS = re.findall(r"^```bash\n(.*?)^```", QUICKSTART.read_text(), flags=re.MULTILINE | re.DOTALL)
LONGEST_S = 500.0
(SCRIPT,) = re.findall(r"^```python\n(.*?)^```", QUICKSTART.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the user's script."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def type_in(block: str, home: Path, addresses: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A block in a shell in which rankscope is installed. Fixed ports become free ones: tests run beside each other."""
    for shown, real in (addresses or {}).items():
        block = block.replace(shown, real)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKSCOPE")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    shell = ["bash", "-m", "-e", "-o", "pipefail", "-c", block]
    return subprocess.run(
        shell, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )


def find_block(word: str) -> str:
    block: str
    (block,) = [block for block in BLOCKS if word in block]
    return block


def test_own_script_ends_with_a_summary(home: Path) -> None:
    done = type_in(find_block("RANKSCOPE=1 torchrun"), home)
    assert done.returncode == 0, done.stderr
    assert re.search(r"rankscope: run .*: 2 ranks, 200 steps", done.stderr)
    assert "rankscope: verdict: " in done.stderr


def test_demo_names_the_slow_rank(home: Path) -> None:
    done = type_in(find_block("rankscope demo"), home)
    assert done.returncode == 0, done.stderr
    assert "\nFOUND    Rank 1 (" in done.stdout
    assert "data_loading" in done.stdout


def test_standing_collector_shows_the_run_and_reports_it(home: Path) -> None:
    wire, http = find_fixed_port(), find_fixed_port()
    addresses = {
        "127.0.0.1:18490": f"127.0.0.1:{wire}",
        "127.0.0.1:18491": f"127.0.0.1:{http}",
        "rankscope status": f"rankscope status --url http://127.0.0.1:{http}",
        "rankscope report first": f"rankscope report first --url http://127.0.0.1:{http}",
    }
    done = type_in(find_block("rankscope serve"), home, addresses)
    assert done.returncode == 0, done.stderr
    assert "  2 of 2 ranks: " in done.stdout
    assert (home / "runs.db").exists()


def test_every_block_of_the_page_is_tried() -> None:
    assert len(BLOCKS) == 4
