"""What the start-up benchmark starts: a script that imports torch, makes one step, and says when each was done."""

import json
from time import monotonic_ns

BEGUN_NS = monotonic_ns()
import torch  # noqa: E402 - when it has been imported is what is asked
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

IMPORTED_NS = monotonic_ns()


def main() -> None:
    """One step of a layer."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(8, 64)), batch_size=8):
        model(batch).sum().backward()
        optimizer.step()
    print(json.dumps({"begun_ns": BEGUN_NS, "imported_ns": IMPORTED_NS, "stepped_ns": monotonic_ns()}))


if __name__ == "__main__":
    main()
