"""What the start-up benchmark starts: a script that imports torch, makes one step, and says when each was done, and
what CPU time its process had used by then.
"""

import json
from time import monotonic_ns, process_time_ns

BEGUN_NS, BEGUN_CPU_NS = monotonic_ns(), process_time_ns()
import torch  # noqa: E402 - when it has been imported is what is asked
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

IMPORTED_NS, IMPORTED_CPU_NS = monotonic_ns(), process_time_ns()


def main() -> None:
    """One step of a layer."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(8, 64)), batch_size=8):
        model(batch).sum().backward()
        optimizer.step()
    stepped_ns, stepped_cpu_ns = monotonic_ns(), process_time_ns()
    times_ns = {"begun": BEGUN_NS, "imported": IMPORTED_NS, "stepped": stepped_ns}
    cpu_ns = {"begun": BEGUN_CPU_NS, "imported": IMPORTED_CPU_NS, "stepped": stepped_cpu_ns}
    print(json.dumps({"times_ns": times_ns, "cpu_ns": cpu_ns}))


if __name__ == "__main__":
    main()
