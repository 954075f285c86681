"""The JSON of `rankscope compare --json` has a schema in the repository, and keeps to it.

    python -m tests.contract.test_compare_schema

writes the schema anew after a change of the comparison's classes.
"""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.comparison.run_comparison import RunComparison
from tests.contract.schema_text import settle
from tests.unit.collector.comparison.compared_runs import keep_steps, kept_sums, vary

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "compare.schema.json"


def make_schema() -> str:
    schema = {"title": "rankscope compare --json", **msgspec.json.schema(RunComparison)}
    settle(schema["$defs"])
    return json.dumps(schema, indent=1) + "\n"


def test_schema_in_the_repository_is_that_of_the_code() -> None:
    assert SCHEMA_FILE.read_text() == make_schema(), "python -m tests.contract.test_compare_schema"


@pytest.mark.parametrize("has_windows", [True, False])
def test_what_is_written_keeps_to_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, has_windows: bool
) -> None:
    path = tmp_path / "store.db"
    for run, step_ms in (("a", 100.0), ("b", 110.0)):
        keep_steps(path, run, vary(step_ms), sums=kept_sums(step_ms, compute=1.0) if has_windows else {})
    assert main(["compare", "a", "b", "--store", str(path), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    jsonschema.validate(written, json.loads(SCHEMA_FILE.read_text()))
    assert {"schema", "verdict", "outcome", "ratio", "ratio_low", "ratio_high", "phases", "uses"} <= written.keys()
    assert bool(written["uses"]) is has_windows


if __name__ == "__main__":
    SCHEMA_FILE.write_text(make_schema())
