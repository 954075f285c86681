"""`rankscope profile-model`: parameters, MACs, FLOPs and times of a model by module, without training."""

import argparse
import importlib.util
import subprocess
import sys

from rankscope.collector.commands.command import add_json, check_json_file
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError

MODULE = "rankscope.agent.profiled_model"


class ProfileModel:
    """Run a function that returns a model and its inputs in a process with torch, and print its figures."""

    name = "profile-model"
    summary = "print parameters, MACs, FLOPs and times of a model by module, without training"
    example = (
        "rankscope profile-model models:make_small                make_small() of models.py returns model, inputs\n"
        "rankscope profile-model models:make_small --depth 2      the modules of two levels"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the function and the choices."""
        parser.add_argument("function", metavar="MODULE:FUNCTION", help="returns a model and its inputs")
        parser.add_argument("--forward-only", action="store_true", help="without the backward")
        parser.add_argument("--depth", type=int, default=None, metavar="N", help="deepest modules that are shown [all]")
        parser.add_argument("--top", type=int, default=3, metavar="N", help="top modules of each depth [3]")
        parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help="leave out modules so named")
        parser.add_argument("--passes", type=int, default=5, metavar="N", help="timed passes [5]")
        parser.add_argument("--dp", type=int, default=1, metavar="N", help="replicas of data parallelism [1]")
        parser.add_argument("--mp", type=int, default=1, metavar="N", help="parts of model parallelism [1]")
        parser.add_argument(
            "--device",
            default=None,
            metavar="NAME",
            help="also the least time of each operator on this device, by its peaks, such as 'NVIDIA H100 80GB HBM3'",
        )
        add_json(parser, "every module")

    def run(self, options: argparse.Namespace) -> int:
        """Run it, and return its exit status. Raises UnavailableError without torch, or where the file of `--json-file`
        cannot be written.
        """
        if importlib.util.find_spec("torch") is None:
            raise UnavailableError("profile-model runs a model with PyTorch, which is missing here: pip install torch")
        check_json_file(options)
        words = [
            options.function, "--top", str(options.top), "--passes", str(options.passes), "--dp", str(options.dp),
            "--mp", str(options.mp), *(["--forward-only"] if options.forward_only else []),
            *(["--depth", str(options.depth)] if options.depth is not None else []),
            *(["--device", options.device] if options.device is not None else []),
            *(["--json"] if options.json else []),
            *(["--json-file", str(options.json_file)] if options.json_file is not None else []),
            *(word for name in options.ignore for word in ("--ignore", name)),
        ]  # fmt: skip
        command = build_child_command(sys.executable, MODULE, *words)
        return subprocess.run(command, check=False, close_fds=False).returncode  # noqa: S603 - FILE may be /dev/fd/N
