"""Keep what the collector of a real job hears, and judge it again by the code as it is now, in seconds.

    python -m tests.second_table.recorded keep 0 FILE      run the first of the CASES of real_jobs.py
    python -m tests.second_table.recorded judge FILE ...   print each finding as it opens and closes, and what was lost

A change of the detector is tried on many jobs that way before one of them runs again. FILE is a pickle of this commit's
classes: it is read where it was made, and not kept for long.
"""

import argparse
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.collector.commands.main import main as run_collector
from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.detectors import build_detectors, detect
from rankscope.collector.detect.view import Detected
from rankscope.collector.runs.events import CloseFinding, FindingOpened
from rankscope.collector.runs.run import RunState
from rankscope.measure.units import ns_to_s
from tests.second_table.real_jobs import CASES, run_once

BEGIN, APPLY, TICK, VIEW = "begin", "apply", "tick", "view"


def serve(path: Path, arguments: list[str]) -> None:
    """Run a collector that writes every call of its runs to a file, without what it has detected itself."""
    with path.open("ab", buffering=0) as file:

        def keep(name: str, kind: str) -> None:
            before = getattr(RunState, name)

            def call(self: RunState, *given: Any) -> Any:
                if not isinstance(given[0], Detected):
                    file.write(pickle.dumps((kind, given)))
                return before(self, *given)

            setattr(RunState, name, call)

        for name, kind in (("__init__", BEGIN), ("apply", APPLY), ("tick", TICK), ("view", VIEW)):
            keep(name, kind)
        run_collector(arguments)


def read(path: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Return the calls in a file, in their order."""
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301 - what this program has written
            except EOFError:
                return


def judge(path: Path) -> Iterator[str]:
    """Return a line for each finding that opens or closes, and one for what the run has lost."""
    run, detectors, begin_ns, now_ns = None, build_detectors(CollectorConfig()), 0, 0
    for kind, given in read(path):
        if kind == BEGIN:
            run, detectors = RunState(*given), build_detectors(given[1])
        elif run is None:
            continue
        elif kind == APPLY:
            run.apply(*given)
        elif kind == TICK:
            now_ns = given[0]
            begin_ns = begin_ns or now_ns
            run.tick(*given)
        elif (view := run.view(*given)) is not None:
            for effect in run.apply(detect(view, detectors)):
                if isinstance(effect, FindingOpened | CloseFinding):
                    step = int(view.series.steps[-1]) if len(view.series.steps) else -1
                    yield f"{ns_to_s(now_ns - begin_ns):6.1f} s, step {step:4}: {_describe(effect)}"
    if run is not None:
        spent = run.goodput.snapshot(now_ns)
        yield f"lost: {spent.slow_ns / max(1, spent.slow_ns + spent.productive_ns):.3f} of the time in steps"


def _describe(effect: FindingOpened | CloseFinding) -> str:
    one = effect.finding
    what = "opened" if isinstance(effect, FindingOpened) else f"closed, {effect.reason}"
    since = f"since {one.since_step} ({one.since_step_min}-{one.since_step_max})"
    return f"{one.number} {one.kind} {list(one.ranks)} {one.cause} {since} {one.run_slowdown_ratio or 0:.2f} x {what}"


def main() -> None:
    """Keep a job, or judge those that were kept."""
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    kept = commands.add_parser("keep", help="run a real job and keep what its collector hears")
    kept.add_argument("case", type=int, choices=range(len(CASES)), help="; ".join(one.name for one in CASES))
    kept.add_argument("file", type=Path)
    judged = commands.add_parser("judge", help="judge what was kept")
    judged.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "keep":
        print(run_once(CASES[options.case], ["-m", "tests.second_table.recorded", "serve", str(options.file)]))
        return
    for file in options.files:
        print(file, *judge(file), sep="\n")


if __name__ == "__main__":
    main()
