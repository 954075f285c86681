"""Check that commands that read files run on laptops, some of which lack the collector's Linux interfaces."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MINUTES_S = 240

WITHOUT_LINUX = """
import os, runpy, select, socket, sys
for module, names in {
    select: ("epoll", "EPOLLIN", "EPOLLOUT"), socket: ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"), os: ("pipe2",)
}.items():
    for name in names:
        delattr(module, name)
sys.argv = ["rankscope", *sys.argv[1:]]
runpy.run_module("rankscope.collector", run_name="__main__")
"""


def test_traces_are_analyzed_where_there_is_no_epoll() -> None:
    trace = ROOT / "tests" / "traces" / "gloo-2.13" / "ddp_2r_slow1_data"
    command = [sys.executable, "-c", WITHOUT_LINUX, "analyze", str(trace)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=MINUTES_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "VERDICT AND ADVICE" in ended.stdout
