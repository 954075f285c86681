"""What is imported while training runs: it is only of our own files, and no fork comes amid it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from rankscope.agent.late_imports import LATE_IMPORTS

DEADLINE_S = 60
FOREIGN = """
import ast, importlib, os, sys
import torch, torch.distributed, torch.utils.data
from rankscope.agent.config import read_config
from rankscope.agent.session import Session
Session(read_config({}), {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
os.chdir("/")
sys.path[:] = []
done, before = set(), set(sys.modules)
while True:
    files = {name: one.__file__ for name, one in list(sys.modules.items()) if name.startswith("rankscope.")}
    new = {name: file for name, file in files.items() if name not in done and file}
    if not new:
        break
    done |= set(new)
    for name, file in new.items():
        inside = [node for node in ast.walk(ast.parse(open(file).read())) if isinstance(node, ast.FunctionDef)]
        late = {one.module for node in inside for one in ast.walk(node) if isinstance(one, ast.ImportFrom)}
        for module in sorted(one for one in late if one and one.startswith("rankscope.")):
            if module not in NOT_IN_TRAINING:
                importlib.import_module(module)
tops = {name.partition(".")[0] for name in before}  # a part of a loaded package is found by that
print(*sorted(name for name in set(sys.modules) - before if name.partition(".")[0] not in tops))
print(len(set(files) - before))
"""
NOT_IN_TRAINING = (
    "rankscope.agent.profiled_model", "rankscope.agent.part_profile",  # calls of the script, outside of a training
    "rankscope.agent.faults.injected_fault",  # at the start
    "rankscope.agent.sample.amd",
)  # fmt: skip


def test_late_imports_find_only_our_files_wherever_the_script_is() -> None:
    code = FOREIGN.replace("NOT_IN_TRAINING", repr(set(NOT_IN_TRAINING)))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    foreign, count = ended.stdout.splitlines()
    assert foreign == "", "a module of the script's may have its name, and a forked child may wait for its lock"
    assert int(count) > 30


def test_fork_waits_until_another_thread_has_imported(tmp_path: Path) -> None:
    order: list[str] = []
    importing, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with LATE_IMPORTS:
            importing.set()
            forked.wait(0.2)  # the fork cannot come before the end of this
            order.append("imported")

    thread = threading.Thread(target=hold)
    thread.start()
    importing.wait(DEADLINE_S)
    child = os.fork()
    if child == 0:
        is_free = LATE_IMPORTS.acquire(timeout=DEADLINE_S)
        (tmp_path / "child").write_text(str(is_free))
        os._exit(0)
    order.append("forked")
    forked.set()
    os.waitpid(child, 0)
    thread.join()
    assert order == ["imported", "forked"]
    assert (tmp_path / "child").read_text() == "True"
