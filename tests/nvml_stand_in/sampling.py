"""Drives NvmlSampler on the stand-in, each time in a new process: pynvml loads its library once per process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rankscope.measure.records import DeviceSample

STRAINED = "GPU-00000000-0000-0000-0000-000000000001"
QUIET = "GPU-00000000-0000-0000-0000-000000000002"
SLICE = "MIG-00000000-0000-0000-0000-000000000004"
MIB = 1024 * 1024

PRELUDE = """
import ctypes, json, sys
import msgspec
from rankscope.agent.sample.nvml import NvmlSampler

class Clock:
    now_s = 0
    def monotonic_ns(self):
        return self.now_s * 1_000_000_000

clock = Clock()
said = []
uuid = sys.argv[1] or None
sampler = NvmlSampler(clock, lambda: uuid, on_unavailable=said.append)

def sample(at_s=0):
    clock.now_s = at_s
    return msgspec.to_builtins(sampler.sample())

def calls():
    return library().stand_in_device_calls()

def library():
    return sys.modules["pynvml"].nvmlLib

def raise_xid(xid, gpu_instance=0xFFFFFFFF):
    library().stand_in_raise_xid(ctypes.c_ulonglong(xid), ctypes.c_uint(gpu_instance))

def held():
    return [library().stand_in_event_sets(), library().stand_in_gpm_samples()]

def init_balance():
    return library().stand_in_init_balance()

def answer(value):
    print(json.dumps(value))
"""
"""What a script has at hand: the sampler, its clock, and the stand-in's own functions."""


def run_script(folder: Path, uuid: str, script: str, **environment: int) -> Any:
    """What `script` answers in a new process that finds its NVML in `folder`."""
    variables = {name: str(value) for name, value in environment.items()}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, uuid],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def name_fields(values: list[Any]) -> dict[str, Any]:
    """A sample by field name, which on the wire is an array."""
    return dict(zip(DeviceSample.__struct_fields__, values, strict=True))


def read_sample(folder: Path, uuid: str, script: str = "answer(sample())", **environment: int) -> dict[str, Any]:
    """The only sample that `script` answers, by field name."""
    (values,) = run_script(folder, uuid, script, **environment)
    return name_fields(values)
