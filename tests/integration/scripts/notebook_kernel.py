"""Trains in the kernel of a notebook, as its client: each cell's output is printed, and the kernel is shut down."""

import sys
from pathlib import Path

from jupyter_client.manager import start_new_kernel

FOLDER = str(Path(__file__).parent)
CELLS = (
    f"import sys; sys.path.insert(0, {FOLDER!r})",
    "import program_shapes",
    "program_shapes.main()",
    "1 / 0",
    "program_shapes.main()",
)

manager, client = start_new_kernel(kernel_name="python3", startup_timeout=300)
for cell in CELLS:
    client.execute(cell)
    while True:
        message = client.get_iopub_msg(timeout=300)
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            print(content["text"], end="", file=sys.stderr if content["name"] == "stderr" else sys.stdout)
        elif kind == "error":
            print(content["ename"], content["evalue"])
        elif kind == "status" and content["execution_state"] == "idle":
            break
client.stop_channels()
manager.shutdown_kernel()
print("shut down", manager.is_alive())
