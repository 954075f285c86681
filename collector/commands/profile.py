"""`rankscope profile`: run a script for a few steps, print the FLOPs, MFU and modules of its model, and end it."""

import argparse
import importlib.util
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rankscope.collector.commands.analyze import TOP, print_errors
from rankscope.collector.commands.command import add_json, check_json_file, give_json
from rankscope.collector.commands.progress import ALL_GOOD
from rankscope.measure.capture_limits import CAPTURE_STEP_MIN, CAPTURE_STEPS_MAX
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.output_files import write_output

SKIP: Final = 5
STEPS: Final = 3
SKIP_MAX: Final = 1_000_000
RANKS_MAX: Final = 1_024
SIGNALED: Final = 128
WIDTH: Final = 120


class Profile:
    """Run a script with the agent, capture a few steps, end it, and print the profile of the model."""

    name = "profile"
    summary = "run a script for a few steps, print the FLOPs, MFU and modules of its model, and end it"
    example = (
        "rankscope profile train.py --lr 0.1                        steps 5 to 7 of `python train.py --lr 0.1`\n"
        "rankscope profile --nproc-per-node 4 --skip 20 train.py    four ranks, by torchrun on this machine"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the steps, the outputs and the script."""
        parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"steps to capture [{STEPS}]")
        parser.add_argument(
            "--skip",
            type=int,
            default=SKIP,
            metavar="N",
            help=f"steps before these, {CAPTURE_STEP_MIN} or more [{SKIP}]",
        )
        parser.add_argument(
            "--nproc-per-node", type=int, default=None, metavar="N", help="start N ranks here by torchrun [without it]"
        )
        parser.add_argument(
            "--peak-tflops",
            type=float,
            default=None,
            metavar="X",
            help="the device's highest TFLOP/s, for all types [by its data sheet, for each type]",
        )
        parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"rows per table [{TOP}]")
        add_json(parser, "the analysis")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write the whole analysis to this file as a page")
        parser.add_argument(
            "-o", "--output", type=Path, metavar="FOLDER", help="keep the traces in this folder, new or empty"
        )
        parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module")
        parser.add_argument("script", metavar="SCRIPT", help="the script, as `python` takes it")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")

    def run(self, options: argparse.Namespace) -> int:
        """Run the script, print its profile, and return 0; 1 without a profile, or what the script returned. Raises
        SettingError, and UnavailableError without torch.
        """
        from rankscope.collector.profiled_script import Script, profile_script  # noqa: PLC0415 - as in `demo`

        check_options(options, os.environ.get("RANK"))
        if importlib.util.find_spec("torch") is None:
            raise UnavailableError("profile runs a script with PyTorch, which is missing here: pip install torch")
        words = (options.script, *options.arguments)
        script = Script(words, options.module, options.nproc_per_node, options.skip, options.steps)
        with ExitStack() as stack:
            if options.output is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankscope-profile-")))
            else:
                folder = _make_empty(options.output)
            check_json_file(options)
            ended = profile_script(script, folder, sys.stderr if options.json else None)
            if ended.problem:
                print(f"rankscope: {ended.problem}", file=sys.stderr)
                return find_status(ended.exit_status)
            status = _print_profile(ended.traces, options)
        if options.output is None:
            print(f"rankscope: the traces in {folder} were deleted; -o FOLDER keeps them", file=sys.stderr)
        return status


def check_options(options: argparse.Namespace, rank: str | None) -> None:
    """Raise SettingError for a number out of range, a script that is not there, and under a launcher, where `rank` is
    the RANK of the environment.
    """
    for name, value, smallest, largest in (
        ("--steps", options.steps, 1, CAPTURE_STEPS_MAX),
        ("--skip", options.skip, CAPTURE_STEP_MIN, SKIP_MAX),
        ("--top", options.top, 1, None),
        ("--nproc-per-node", 1 if options.nproc_per_node is None else options.nproc_per_node, 1, RANKS_MAX),
    ):
        if value < smallest or (largest is not None and value > largest):
            limits = f"{smallest} or more" if largest is None else f"from {smallest} to {largest}"
            raise SettingError(f"{name} is {value}; it must be {limits}")
    if options.peak_tflops is not None and not options.peak_tflops > 0:
        raise SettingError(f"--peak-tflops is {options.peak_tflops:g}; it must be above 0")
    if rank is not None:
        raise SettingError(
            f"RANK is {rank}, set by a launcher. `rankscope profile --nproc-per-node N SCRIPT` starts torchrun by "
            "itself, on one machine; for several, set capture_schedule (docs/captures.md) and use `rankscope analyze "
            "--flops`."
        )
    if not options.module and not Path(options.script).is_file():
        raise SettingError(f"SCRIPT is {options.script!r}, which is no file; a module needs -m before it")


def find_status(exit_status: int | None) -> int:
    """Return our exit status for a script without a profile: its own, or 1 where that says nothing of an error.

    >>> find_status(0), find_status(3), find_status(-9), find_status(None)
    (1, 3, 137, 1)
    """
    if exit_status is None:
        return 1
    return SIGNALED - exit_status if exit_status < 0 else exit_status or 1


def _make_empty(folder: Path) -> Path:
    """Make the folder for traces, and return its absolute path. Raises SettingError and UnavailableError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = next(folder.iterdir(), None) is None
    except OSError as error:
        raise UnavailableError(f"{folder} (from -o) cannot be used: {error.strerror}") from error
    if not is_empty:
        raise SettingError(f"{folder} (from -o) is not empty; name a new or an empty folder")
    return folder.absolute()


def _print_profile(traces: Path, options: argparse.Namespace) -> int:
    """Print the tables of the model's profile, then write the whole analysis where it is asked for."""
    from rankscope.collector.reports.flops_tables import build_flops_sections  # noqa: PLC0415 - `--help` is fast
    from rankscope.collector.reports.trace_page import render_page  # noqa: PLC0415
    from rankscope.collector.reports.trace_text import headline, render_section  # noqa: PLC0415
    from rankscope.collector.traces import analyze  # noqa: PLC0415

    report = analyze([str(traces)], flops=True, modules=True, peak_tflops=options.peak_tflops)
    if give_json(options, report) and report.ranks:
        sections = build_flops_sections(report.ranks, options.top, options.top)
        print("\n\n".join([headline(report), *("\n".join(render_section(one, WIDTH)) for one in sections)]))
    if options.html is not None:
        write_output(options.html, "--html", render_page(report, options.top).encode())
    return ALL_GOOD if print_errors(report) == ALL_GOOD else 1
