"""Which files are of this package, by the names that frames, tracebacks and traces have for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.agent.steps import torch_hooks
from rankscope.collector.traces.sources import is_users
from rankscope.measure.own_files import is_own_file
from rankscope.measure.stalls import StackFrame, find_script_frame

HOOKS = "agent/steps/torch_hooks.py"


@pytest.mark.parametrize(
    "file",
    [
        torch_hooks.__file__,  # a checkout
        f"/usr/lib/python3/dist-packages/rankscope/{HOOKS}",
        f"rankscope/{HOOKS}",  # in a trace, of an installed package
        HOOKS,  # in a trace, of a checkout that is on sys.path
        f"/data/job.zip/rankscope/{HOOKS}",
    ],
)
def test_own_hook_is_never_the_line_of_the_user(file: str) -> None:
    assert is_own_file(file)
    assert not is_users(f"{file}(220): backward")
    script = StackFrame("/home/me/train.py", 24, "main")
    assert find_script_frame([StackFrame(file, 220, "backward"), script]) == script


@pytest.mark.parametrize("file", ["agent/config.py", "/home/me/agent/steps/walk.py", "rankscope_job/train.py"])
def test_users_own_folder_of_that_name_is_the_users(file: str) -> None:
    assert not is_own_file(file)
    assert is_users(f"{file}(3): step")


def test_the_demo_is_a_script() -> None:
    demo = Path(torch_hooks.__file__).parents[2] / "collector" / "demo" / "train.py"
    assert demo.exists()
    assert not is_own_file(str(demo))


def test_process_without_a_file_to_open_is_answered() -> None:
    """Its last error is asked about: it may be that there are too many open files."""
    program = (
        "import resource; from rankscope.measure.own_files import is_own_file; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); print(is_own_file('/home/me/train.py'))"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout == "False\n"
