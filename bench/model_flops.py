"""Compare the FLOPs of a forward by hand with those of rankscope, torch, fvcore and DeepSpeed, on the models of
tests/flop_models.py: `python -m bench.model_flops`. Of fvcore and DeepSpeed, which count MACs, twice the number.
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from rankscope.agent.profiled_model import profile_model
from tests.flop_models import MODELS, Known


def count_rankscope(known: Known) -> int:
    return profile_model(known.model, known.inputs, passes=1, backward=False).whole.forward_flops


def count_torch(known: Known) -> int:
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        known.run_forward()
    return int(counter.get_total_flops())


def count_fvcore(known: Known) -> int:
    fvcore: Any = importlib.import_module("fvcore.nn")  # installed for this comparison alone
    return 2 * int(fvcore.FlopCountAnalysis(known.model.eval(), known.inputs).total())


def count_deepspeed(known: Known) -> int:
    deepspeed: Any = importlib.import_module("deepspeed.profiling.flops_profiler.profiler")  # as above
    profiler = deepspeed.FlopsProfiler(known.model)
    profiler.start_profile()
    known.run_forward()
    found = 2 * int(profiler.get_total_macs())
    profiler.end_profile()
    return found


def describe(count: Callable[[Known], int], known: Known) -> str:
    try:
        return f"{count(known):,}"
    except ImportError:
        return "not installed"
    except Exception as error:  # noqa: BLE001 - that a tool fails is a result
        return f"fails ({type(error).__name__})"


def main() -> None:
    warnings.simplefilter("ignore")
    counters = (count_rankscope, count_torch, count_fvcore, count_deepspeed)
    print("| model | by hand | rankscope | torch | fvcore | DeepSpeed |\n|---|---|---|---|---|---|")
    for name, make in MODELS.items():
        found = [describe(count, make()) for count in counters]
        print(f"| {name} | {make().forward:,} | {' | '.join(found)} |")


if __name__ == "__main__":
    main()
