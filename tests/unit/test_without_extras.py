"""What the base installation does without: the libraries of the extras and of the tests."""

import subprocess
import sys

import pytest

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"prometheus_client", "nacl", "isal", "rich"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
HELP = "from rankscope.collector.commands.main import main\nmain([{command!r}, '--help'])"


def run_blocked(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKER + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.parametrize("module", ["agent", "agent.launch", "collector.embedded", "collector.service"])
def test_base_install_imports_without_extras(module: str) -> None:
    done = run_blocked(f"import rankscope.{module}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["serve", "status", "files", "top"])
def test_commands_start_without_extras(command: str) -> None:
    done = run_blocked(HELP.format(command=command))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"rankscope {command}" in done.stdout


def test_blocker_hides_the_libraries() -> None:
    done = run_blocked("import prometheus_client")
    assert done.returncode == 1
    assert "No module named 'prometheus_client'" in done.stderr
