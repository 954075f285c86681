"""An eager training in bf16 that is bound by its launches, under the agent until the FLOPs of its steps are known, and
then for some seconds that it times itself.

Prints, as JSON, the FLOPs of a step by hand, how often Kineto was asked for a session, the mean duration of a step
before FLOPs were known and after, and why they are not. It gives up after `--wait-s`.
"""

import argparse
import json
import time
from typing import Any

import torch
from torch import nn
from torch._C import _autograd

import rankscope
from rankscope.agent import launch

BATCH, WIDTH, LAYERS = 8, 64, 100
PRODUCT = 2 * BATCH * WIDTH * WIDTH
MODEL, EXECUTED = 3 * LAYERS * PRODUCT, (3 * LAYERS - 1) * PRODUCT
"""The input of the first layer needs no gradient."""
WARM_S = 1.0


def count_sessions() -> list[int]:
    """Return the number of sessions that are prepared from now on, of anybody; a list of one."""
    count, prepare = [0], _autograd._prepare_profiler

    def prepare_and_count(*arguments: Any) -> Any:
        count[0] += 1
        return prepare(*arguments)

    setattr(_autograd, "_prepare_profiler", prepare_and_count)  # noqa: B010 - mypy knows its type
    return count


def main() -> None:
    """Train, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait-s", type=float, default=75.0)
    parser.add_argument("--timed-s", type=float, default=4.0)
    options = parser.parse_args()
    sessions = count_sessions()
    assert rankscope.start()
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    assert launch.session is not None
    flops = launch.session.calls._flops

    def train_until(end_s: float, is_over: Any) -> float:
        """Return the mean duration of a step, s."""
        begin_s, steps = time.monotonic(), 0
        while not is_over() and time.monotonic() < end_s:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            float(loss.detach())  # waits for the device: the host's clock has the whole step
            steps += 1
        return (time.monotonic() - begin_s) / max(1, steps)

    train_until(time.monotonic() + WARM_S, lambda: False)  # it begins with what is loaded and compiled
    before_s = train_until(time.monotonic() + options.wait_s, lambda: flops._measured is not None)
    after_s = train_until(time.monotonic() + options.timed_s, lambda: False)
    reason = "" if flops._measured is not None else flops.absent.get("executed", "")
    said = {"model": MODEL, "executed": EXECUTED, "before_s": before_s, "step_s": after_s, "absent": reason}
    print(json.dumps({**said, "sessions": sessions[0]}), flush=True)


if __name__ == "__main__":
    main()
