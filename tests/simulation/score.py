"""Score detection: the runs of `matrix.py`, our findings and other tools' rules. `python -m tests.simulation.score`.

Writes bench/results/score.md. `parts.py` says how to judge a selection, or all runs in parts.
"""

from collections.abc import Callable, Sequence

from tests.simulation import matrix
from tests.simulation.ideal import DECIDED_Z
from tests.simulation.matrix import SURELY_SEEN
from tests.simulation.parts import Scored, Suite, run_suite
from tests.simulation.scenarios import BEGIN
from tests.simulation.tables import bound_false, decidable_table, rival_table, write_table, wrong_tables


def main() -> None:
    """Score the matrix, and write its tables."""
    run_suite(Suite(matrix.trials, "tests.simulation.score", "score.md", write_report), __doc__)


def write_report(scored: Sequence[Scored], head: str, took_s: float) -> str:
    """Return the whole result as Markdown."""
    healthy = [one for one in scored if not one.trial.scenario.faults]
    sizes = sorted({one.trial.scenario.topology.world_size for one in scored})
    rank_steps = sum(one.ours.rank_steps for one in scored)
    intro = (
        f"{len(scored)} runs of {sizes[0]} to {sizes[-1]:,} ranks in {took_s:.0f} s, {len(healthy)} of them healthy; "
        f"{rank_steps:,} steps of healthy ranks. The columns are explained in tests/simulation/scoring.py, the runs "
        f"in matrix.py. *right* columns are shares of the faults found, *since* and *delay* medians over them. Faults "
        f"begin at step {BEGIN}; a detection pass runs every 8 steps. A rank 1.03 times as slow is below the "
        "threshold (1.05), and must not be reported."
    )
    parts = [
        "# How well slowness is found",
        head,
        intro,
        bound_false(scored),
        *_tables(scored),
        *wrong_tables(scored),
        *_rival_tables(scored),
    ]
    return "\n\n".join(parts) + "\n"


def _tables(scored: Sequence[Scored]) -> list[str]:
    one_rank = _about(scored, matrix.ONE_RANK)
    surely = _seen(one_rank)
    healthy = _about(scored, matrix.HEALTHY)

    def by_size(one: Scored) -> str:
        return f"{one.trial.what}, {one.trial.ratio:g} x"

    tables: list[tuple[str, Sequence[Scored], Callable[[Scored], str]]] = [
        (f"in short, {SURELY_SEEN:g} x and above", _seen(scored), lambda one: one.trial.about),
        ("one slow rank, by size of the fault", one_rank, lambda one: f"{one.trial.ratio:g} x"),
        ("one slow rank, by cause and size", one_rank, by_size),
        (f"one slow rank, {SURELY_SEEN:g} x and above, by layout", surely, lambda one: one.trial.where),
        ("unsteady, by pattern and size", _about(scored, matrix.PATTERN), by_size),
        ("a whole node, stage or run, by size", _about(scored, matrix.PLACE), by_size),
        ("two slow ranks at once", _about(scored, matrix.TWO), by_size),
        ("a rank that recovers after 40 steps", _about(scored, matrix.RECOVERY), lambda one: one.trial.what),
        ("network, clocks, death", _about(scored, matrix.WORLD), lambda one: one.trial.what),
        ("one slow rank in noise", _about(scored, matrix.NOISE), by_size),
        ("ranks that are not equal, even seeds", _of_seeds(scored, matrix.UNEQUAL, 0), lambda one: one.trial.what),
        (
            "ranks that are not equal, odd seeds (held out)",
            _of_seeds(scored, matrix.UNEQUAL, 1),
            lambda one: one.trial.what,
        ),
        ("busy machines, even seeds", _of_seeds(scored, matrix.BUSY, 0), lambda one: one.trial.what),
        ("busy machines, odd seeds (held out)", _of_seeds(scored, matrix.BUSY, 1), lambda one: one.trial.what),
        ("schedules of pipelines, even seeds", _of_seeds(scored, matrix.SCHEDULE, 0), lambda one: one.trial.what),
        (
            "schedules of pipelines, odd seeds (held out)",
            _of_seeds(scored, matrix.SCHEDULE, 1),
            lambda one: one.trial.what,
        ),
        ("healthy, by noise", healthy, lambda one: one.trial.noise),
        ("healthy, by layout", healthy, lambda one: one.trial.where),
    ]
    written = [write_table(title, rows, name_of) for title, rows, name_of in tables if rows]
    return [*written, *_decidable(_about(scored, matrix.NOISE), by_size)]


def _decidable(scored: Sequence[Scored], name_of: Callable[[Scored], str]) -> list[str]:
    """Return whether one slow rank in noise can be found at all."""
    explanation = (
        "Whether noise hides a slow rank, by the ideal test: it knows the healthy work of the rank, the size and "
        "correlation of the noise, and since when the fault lasts (tests/simulation/ideal.py). Where it decides "
        f"({DECIDED_Z:g} standard errors, as many as detection asks for), a miss is ours. It sees the rank's own work "
        "only: what all ranks of a node share (shared_nodes) is noise to it, and not where they are compared."
    )
    table = decidable_table("one slow rank in noise", scored, name_of)
    return [explanation, table] if table else []


def _about(scored: Sequence[Scored], about: str) -> list[Scored]:
    return [one for one in scored if one.trial.about == about]


def _of_seeds(scored: Sequence[Scored], about: str, odd: int) -> list[Scored]:
    """Return the runs of one part with even seeds, or with odd ones."""
    return [one for one in _about(scored, about) if one.trial.scenario.seed % 2 == odd]


def _seen(scored: Sequence[Scored]) -> list[Scored]:
    """Return the runs with faults that should be found, and those without any."""
    return [one for one in scored if one.trial.ratio is None or one.trial.ratio >= SURELY_SEEN]


def _rival_tables(scored: Sequence[Scored]) -> list[str]:
    """Ours and theirs: on faults of one rank that are to be found, and on everything."""
    asked = _seen(_about(scored, matrix.ONE_RANK) + _about(scored, matrix.NOISE))
    healthy = _about(scored, matrix.HEALTHY)
    explanation = (
        "The same runs by the rules of other tools, at the same passes, by the same judge; rules and inputs are in "
        "bench/rivals.py. Recall and precision are over every run with one slow rank, "
        f"{SURELY_SEEN:g} x and above, in all layouts and noises; healthy runs are counted apart."
    )
    return ["## Beside the rules of others", explanation, rival_table(asked, healthy)]


if __name__ == "__main__":
    main()
