"""Train while a timer's handler raises again and again, wherever it comes, and count what the loop catches; then leave
with a handler that still raises. Prints how many optimizer steps returned, and whether each exception amid the agent
came once: `twice: 0, missing: []`.
"""

import atexit
import signal
import sys
import time
from types import FrameType

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope import agent

DELAY_S_MAX = 0.008
ENOUGH = 40
STEPS_AFTER = 20
OURS = tuple(f"{agent.__path__[0]}/{part}/" for part in ("steps", "profiler", "captures"))
"""Not that which launches this script."""


class PreemptedError(Exception):
    """What the handler raises, with its number."""


raised = 0
caught: list[int] = []
amid_agent: set[int] = set()
"""Those that came amid code of the agent. Some that come amid torch's are caught there."""


def preempt(_number: int, frame: FrameType | None) -> None:
    """Raise, and note amid what."""
    global raised  # noqa: PLW0603 - what a handler can do
    raised += 1
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            amid_agent.add(raised)
        frame = frame.f_back
    raise PreemptedError(raised)


model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
signal.signal(signal.SIGALRM, preempt)
left, returned = STEPS_AFTER, 0
batches = iter(DataLoader(TensorDataset(torch.ones(4096, 8)), batch_size=4))
while left:
    try:
        if len(caught) < ENOUGH:
            signal.setitimer(signal.ITIMER_REAL, DELAY_S_MAX * (1 + len(caught)) / ENOUGH)
        else:
            left -= 1
        optimizer.zero_grad()
        (batch,) = next(batches)
        model(batch).sum().backward()
        optimizer.step()
        returned += 1
        time.sleep(2 * DELAY_S_MAX)  # it comes before the end of this
    except PreemptedError as error:
        caught.append(error.args[0])
missing = sorted(amid_agent.difference(caught))
sys.stdout.write(f"steps: {returned}\ntwice: {len(caught) - len({*caught})}, missing: {missing}\n")
atexit.register(signal.setitimer, signal.ITIMER_REAL, DELAY_S_MAX)  # amid the end of the agent, which comes next
