"""`python -m bench.soak [--ranks 1024] [--minutes 30] [--seed 1]`: exits with 1 when anything was wrong."""

import argparse
import shlex
import signal
import sys
from pathlib import Path

from bench.machine import RESULTS, describe_run
from bench.soak.faults import DoneFault
from bench.soak.result import render
from bench.soak.run import SoakSettings, run_soak
from bench.soak.watch import S_PER_MIN


def _tell(done: DoneFault) -> DoneFault:
    planned = done.planned
    print(
        f"{done.began_s:6.0f} s: {planned.kind}, {planned.duration_s:.0f} s, well again after {done.healed_s:.1f} s",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    return done


def main() -> int:
    """Run one soak and write its result down."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Ranks and faults for long.")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault-s-max", type=float, default=30.0, help="longest fault, in seconds")
    parser.add_argument("--interval-s", type=float, default=1.0, help="time between two reports of a rank, in seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "soak-1024.md")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # and so end all processes
    head = describe_run(f"python -m bench.soak {shlex.join(sys.argv[1:])}".strip())
    settings = SoakSettings(
        ranks=options.ranks,
        seconds=options.minutes * S_PER_MIN,
        seed=options.seed,
        fault_s_max=options.fault_s_max,
        interval_s=options.interval_s,
        tell=_tell,
    )
    result = run_soak(settings)
    text = render(result, head)
    options.out.write_text(text, encoding="utf-8")
    print(text)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
