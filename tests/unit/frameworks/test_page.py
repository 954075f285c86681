"""docs/frameworks.md: a row for each job, which says what is wrong as plainly as what is right."""

from tests.frameworks.outcome import Outcome
from tests.frameworks.page import write_page
from tests.frameworks.problems import find_problems
from tests.frameworks.rows import ROWS, Row

ROW = Row(name="one", framework="PyTorch", package="torch", what="FSDP9", script="fsdp9")
GOOD = Outcome(
    version="9.1", theirs=(300, 300), ours=(300, 300), phases_ms={"backward": 2.0, "forward": 4.04},
    groups={"default_pg": ("all_gather",), "mesh_dp/0,2": ("all_reduce",)}, slow_rank=1, named=(1,), sentence="Rank 1.",
)  # fmt: skip


def write(outcome: Outcome | None) -> str:
    page = write_page([ROW], {} if outcome is None else {"one": outcome}, "| machine | none |")
    return next(line for line in page.splitlines() if line.startswith("| PyTorch"))


def change(**fields: object) -> Outcome:
    return Outcome(**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__} | fields)


def test_row_of_a_job_that_is_as_it_should_be() -> None:
    assert write(GOOD) == (
        "| PyTorch | 9.1 | FSDP9 | 2 | 300 / 300 | backward 2.0, forward 4.0 | named | nobody accused | yes |"
    )
    assert find_problems(GOOD) == []


def test_unequal_step_counts_are_listed_and_odd_ones_stand_out() -> None:
    assert "| **300, 290 / 300** |" in write(change(theirs=(300, 290)))


def test_what_is_wrong_stands_out() -> None:
    wrong = change(named=(0,), accused=("Rank 0 was slow.",), differs=("rank 0 told other losses",))
    assert write(wrong).endswith("| **named 0** | **1 accused** | **no** |")
    assert len(find_problems(wrong)) == 3
    assert "| **not named** |" in write(change(named=()))


def test_job_that_cannot_be_run_has_its_own_error_text() -> None:
    row = write(Outcome(version="0.3", error="ImportError: no `triton` | here"))
    assert row == "| PyTorch | 0.3 | FSDP9 | 2 | cannot be run: `ImportError: no 'triton' \\| here` |  |  |  |  |"


def test_job_that_was_not_run_says_so() -> None:
    assert "| not run yet |" in write(None)


def test_groups_sentences_and_differences_are_below_the_table() -> None:
    page = write_page([ROW], {"one": change(differs=("+ odd",))}, "")
    assert "| PyTorch | FSDP9 | `default_pg`: all_gather; `mesh_dp/0,2`: all_reduce |" in page
    assert "- **PyTorch, FSDP9**: Rank 1. · differs: + odd" in page


def test_each_job_has_a_name_of_its_own() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
