"""A short training that says which modules of rankscope are there when the agent has ended."""

import atexit
import sys


def tell() -> None:
    """The last thing that the process does: it was registered before the agent came."""
    print(*sorted(name for name in sys.modules if name.startswith("rankscope.")))


atexit.register(tell)

import torch  # noqa: E402 - the agent begins at its end

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
