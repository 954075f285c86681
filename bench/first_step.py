"""What the start-up benchmark starts: a script that imports torch, makes one step, and says when each was done, and
what CPU time its process had used by then. Where the agent starts amid the import, it says how long that took.
"""

import json
import sys
from time import monotonic_ns, process_time_ns, thread_time_ns

BEGUN_NS, BEGUN_CPU_NS = monotonic_ns(), process_time_ns()
SESSION_NS: list[int] = []


def time_session() -> None:
    """From now on the start of the session, with all it imports, is timed; nothing where there is no agent."""
    launch = sys.modules.get("rankscope.agent.launch")
    if launch is None:
        return
    start_session = launch.start_session

    def timed() -> object:
        begin_ns = thread_time_ns()
        started = start_session()
        SESSION_NS.append(thread_time_ns() - begin_ns)
        return started

    launch.start_session = timed  # type: ignore[attr-defined]


time_session()
import torch  # noqa: E402 - when it has been imported is what is asked
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

IMPORTED_NS, IMPORTED_CPU_NS, IMPORTED_THREAD_NS = monotonic_ns(), process_time_ns(), thread_time_ns()


def main() -> None:
    """One step of a layer."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the first optimizer imports as much again as torch
    made_thread_ns = thread_time_ns()
    for (batch,) in DataLoader(TensorDataset(torch.ones(8, 64)), batch_size=8):
        model(batch).sum().backward()
        optimizer.step()
    stepped_ns, stepped_cpu_ns, stepped_thread_ns = monotonic_ns(), process_time_ns(), thread_time_ns()
    times_ns = {"begun": BEGUN_NS, "imported": IMPORTED_NS, "stepped": stepped_ns}
    cpu_ns = {"begun": BEGUN_CPU_NS, "imported": IMPORTED_CPU_NS, "stepped": stepped_cpu_ns}
    whole_ns, own_ns = stepped_cpu_ns - IMPORTED_CPU_NS, stepped_thread_ns - IMPORTED_THREAD_NS
    account_ns = {
        "session": sum(SESSION_NS),
        "other threads": whole_ns - own_ns,
        "step": stepped_thread_ns - made_thread_ns,
    }
    print(json.dumps({"times_ns": times_ns, "cpu_ns": cpu_ns, "account_ns": account_ns}))


if __name__ == "__main__":
    main()
