"""Run the jobs of all frameworks, or those whose names begin with the words given, and write docs/frameworks.md.

python -m tests.frameworks [NAME...]
"""

import sys
from pathlib import Path
from typing import Final

import msgspec

from bench.machine import describe_run
from tests.frameworks.outcome import Outcome
from tests.frameworks.page import write_page
from tests.frameworks.problems import find_problems
from tests.frameworks.rows import ROWS, Row
from tests.frameworks.running import run_row
from tests.integration.serving import Served, serving
from tests.integration.torchrun import ROOT

RESULTS: Final = Path(__file__).parent / "results.json"
PAGE: Final = ROOT / "docs" / "frameworks.md"


class Results(msgspec.Struct):
    """What was seen last of each row, by its name, and on which machine."""

    machine: str = ""
    outcomes: dict[str, Outcome] = {}


def read_results() -> Results:
    """Return what is kept of earlier runs."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else Results()


def write_results(results: Results) -> None:
    """Keep them, and write the page."""
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    PAGE.write_text(write_page(ROWS, results.outcomes, results.machine))


def main() -> int:
    """Run what is asked for. The status is 1 where something is not as it should be."""
    asked = sys.argv[1:]
    rows = [row for row in ROWS if not asked or row.name.startswith(tuple(asked))]
    machine = describe_run("make test-frameworks")
    with serving() as served:
        return max([_run(row, served, machine) for row in rows], default=0)


def _run(row: Row, served: Served, machine: str) -> int:
    outcome = run_row(row, served)
    results = read_results()
    results.machine = machine
    results.outcomes[row.name] = outcome
    write_results(results)
    print(f"{row.name}: {'; '.join(find_problems(outcome)) or 'as it should be'}", flush=True)
    return 1 if find_problems(outcome) else 0


if __name__ == "__main__":
    sys.exit(main())
