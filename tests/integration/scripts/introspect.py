"""Says how it finds itself run, and sets its environment before it imports torch, as many scripts do."""

import importlib
import os
import pickle
import sys

early = sorted({"torch", "numpy"} & set(sys.modules))
os.environ["OMP_NUM_THREADS"] = "2"

import torch  # noqa: E402

beside = importlib.import_module("beside")  # the module in this script's folder


class Kept:
    """Pickled by reference to __main__."""


print(
    __name__,
    __file__,
    __spec__,
    __package__,
    type(globals()["__loader__"]).__name__,
    sys._getframe().f_code.co_filename,
)
print(sys.argv, sys.path)
print(sys.modules["__main__"].Kept is Kept, type(pickle.loads(pickle.dumps(Kept()))) is Kept)  # noqa: S301 - its own
print(early, torch.get_num_threads(), beside.ANSWER)
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
