"""Says how it finds itself run. It sets its environment before it imports torch, as many scripts do."""

import os
import pickle
import sys

early = "torch" in sys.modules
os.environ["OMP_NUM_THREADS"] = "2"

import torch  # noqa: E402


class Kept:
    """Pickled by reference to __main__."""


print("name", __name__, "file", __file__, "argv", sys.argv, "path", sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
print("early", early, "threads", torch.get_num_threads())
print("pickled", type(pickle.loads(pickle.dumps(Kept()))) is Kept)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
