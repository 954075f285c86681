"""A training that times itself, as it runs without the agent and with it:

    python timed_training.py eager|compiled|graph [--device cuda|cpu] [--seconds 8] [--blocks-min 0]

Prints a line of JSON for each block of BLOCK_STEPS steps, after the device was waited for: its first step and its us a
step. The agent sees the steps by its hooks, those of a CUDA graph, which calls none, by `rankscope.step()`.
"""

import argparse
import json
from time import perf_counter_ns

import torch

import rankscope
from tests.gpu.window_effect import capture, make_step

BLOCK_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("eager", "compiled", "graph"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--blocks-min", type=int, default=0)
    given = parser.parse_args()
    is_graph = given.how == "graph"
    step = make_step(wide=False, compiled=given.how == "compiled", device=given.device)
    step()  # compiles
    run = capture(step) if is_graph else step
    first_step, end_ns = 0, perf_counter_ns() + round(given.seconds * 1e9)
    while perf_counter_ns() < end_ns or first_step < given.blocks_min * BLOCK_STEPS:
        wait(given.device)
        begin_ns = perf_counter_ns()
        for _ in range(BLOCK_STEPS):
            run()
            if is_graph:
                rankscope.step()
        wait(given.device)
        us = (perf_counter_ns() - begin_ns) / BLOCK_STEPS / 1000
        print(json.dumps({"first_step": first_step, "us": round(us, 1)}), flush=True)
        first_step += BLOCK_STEPS


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
