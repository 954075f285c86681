"""Tests of imports and garbage collection around the start of the agent."""

import contextlib
import gc
import os
import subprocess
import sys

import pytest

from rankscope.agent import launch


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_restored_after_imports(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with contextlib.suppress(ImportError), launch._without_collections():
            assert not gc.isenabled()
            raise ImportError("no torch here")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_unwanted_agent_imports_almost_nothing() -> None:
    # Where rankscope is installed, every `import torch` loads its entry point.
    script = (
        "import sys; from rankscope.agent.launch import autoload; before = set(sys.modules); autoload();"
        "print(*sorted(set(sys.modules) - before), *sorted(m for m in sys.modules if m.split('.')[0] == 'msgspec'),"
        "*sorted(m for m in sys.modules if m.startswith('rankscope.')))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RANKSCOPE"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=500, env=environment
    )
    assert done.stdout.split() == [
        "rankscope.agent", "rankscope.agent.green_threads", "rankscope.agent.guard", "rankscope.agent.launch",
        "rankscope.measure", "rankscope.measure.errors",
        "rankscope.measure.own_files",
    ]  # fmt: skip


def test_no_standard_modules_are_imported_after_the_start() -> None:
    """By then the script's folder is searched first, and may have a module of the same name. The pre-flight is a
    program of its own, which runs in no training.
    """
    script = (
        "import importlib, pkgutil, sys, torch, rankscope.agent, rankscope.measure, rankscope.uplink;"
        "import rankscope.agent.shutdown.script_exit, rankscope.agent.session; before = set(sys.modules);"
        "packages = (rankscope.agent, rankscope.measure, rankscope.uplink);"
        "names = [m.name for p in packages for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.')];"
        "left_out = ('__main__', 'integrations', 'preflight');"
        "[importlib.import_module(name) for name in names if not any(part in name for part in left_out)];"
        "print('then', *sorted(m for m in set(sys.modules) - before if m.partition('.')[0] in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=500)
    assert done.stdout.split() == ["then"]
