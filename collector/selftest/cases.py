"""Say for each kind of fault which sentence about it is right, and find that in a run. Pure.

A fault counts as found only by its own cause: the cause is what a person acts on. Where two kinds of fault cannot be
told apart by what a host without a GPU reports, the sentence is the one that is true of both (docs/selftest.md).
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import HANG, STRAGGLER, Finding
from rankscope.collector.runs.run_end_words import FAILURE, find_failure
from rankscope.collector.runs.snapshot import RunSnapshot

RANK: Final = 2
RANKS: Final = 4
FIRST_STEP: Final = 40
"""The first step of each fault: by then detection knows how fast the ranks are without it."""
LAST_STEP: Final = 100_000
"""A fault lasts until its sentence is there, and the training is ended."""
SLOW_MS: Final = 150
"""How long a fault takes in each step: a step takes 40 ms on two idle cores, and 150 ms on busy ones."""
ACCUSES: Final = frozenset({STRAGGLER, HANG})
"""Kinds of findings that accuse ranks."""


CPU_PRESSURE: Final = "cpu_pressure"
"""Cause of ranks that wait for a core: true of any rank beside other work on the machine."""


class Case(NamedTuple):
    """A fault, and the sentence that is right: a finding of this kind and cause about RANK alone, or the end of the run
    (kind FAILURE) with RANK as the first to fail, that has these words (a regular expression; `in_words` is that for
    people where it is not the same). `line` is what samples of the ranks have to name, too (a regular expression);
    empty where none are taken. `needs_cores`: beside other work on all cores the fault is another one, since every
    rank waits for a core then (docs/selftest.md).
    """

    kind: str
    cause: str
    words: str = ""
    in_words: str = ""
    line: str = ""
    ms: int | None = None
    needs_cores: bool = False

    def order(self, name: str) -> str:
        """Return the value of RANKSCOPE_FAULT."""
        duration = "" if self.ms is None else f" ms={self.ms}"
        return f"rank={RANK} kind={name}{duration} steps={FIRST_STEP}:{LAST_STEP}"


FAULT_LINE: Final = r"in a fault injected on purpose, called at train\.py:\d+ \(main\)"
HANG_LINE: Final = r"waits? in .*, called at train\.py:\d+ \(main\)"

CASES: Final[Mapping[str, Case]] = {
    "host_sleep": Case(STRAGGLER, "unseen_wait", "of it in forward", line=FAULT_LINE, ms=SLOW_MS),
    "gil_spin": Case(
        STRAGGLER,
        "host_cpu",
        "waiting for other threads of its process or Python's interpreter lock",
        line=FAULT_LINE,
        ms=SLOW_MS,
        needs_cores=True,
    ),
    "garbage_collection": Case(STRAGGLER, "garbage_collection", line=FAULT_LINE, ms=SLOW_MS),
    "loader_delay": Case(STRAGGLER, "data_loading", line=FAULT_LINE, ms=SLOW_MS),
    "allocation_churn": Case(STRAGGLER, "host_cpu", "its training thread computing", line=FAULT_LINE, ms=SLOW_MS),
    "cpu_hog": Case(STRAGGLER, CPU_PRESSURE, "more per step for a CPU core", needs_cores=True),
    "sigstop": Case(HANG, "missing_rank", "its process stopped", line=HANG_LINE, ms=30_000),
    "hang": Case(
        HANG,
        "missing_rank",
        r"stalled in backward at train\.py:\d+ \(main\)",
        "stalled in backward at train.py, in main",
        line=rf"^Rank {RANK} waits {FAULT_LINE}.*; ranks? .* {HANG_LINE}",
        ms=30_000,
    ),
    "exit": Case(FAILURE, "failed", "exit code 3"),
    "crash": Case(FAILURE, "crashed", "SIGSEGV"),
}
"""By the kind of the fault, in the order in which they are tried."""


class Verdict(NamedTuple):
    """What the monitor said of a fault. `said` is the right sentence, or the last other one; empty where nothing was
    said. `line` is what samples have shown beside it, empty without any. `steps` is how many steps after the fault's
    first one the last reported one was then, `is_right` whether sentence and line are right, `wrong` accuses another
    rank, of which `wrong_cause` is the cause. `last_step` is the last reported one, None before any.
    """

    said: str
    steps: int
    is_right: bool
    line: str = ""
    wrong: str = ""
    wrong_cause: str = ""
    last_step: int | None = None


def judge(case: Case, run: RunSnapshot) -> Verdict:
    """Return what is said of the fault now."""
    failure = find_failure(run.end)
    said = [*run.findings, *([] if failure is None else [failure])]
    right = next((one for one in said if _is_right(case, one)), None)
    wrong = [one for one in said if one.kind in ACCUSES and one.ranks != (RANK,)]
    # What other work on the machine does not explain comes first.
    worst = min(wrong, key=lambda one: one.cause == CPU_PRESSURE, default=None)
    last_step = max((rank.last_step for rank in run.ranks if rank.last_step is not None), default=None)
    last = said[-1].sentence if said else ""
    line = "" if right is None or right.lines is None else right.lines.sentence
    return Verdict(
        said=last if right is None else right.sentence,
        steps=max(0, (last_step or 0) - FIRST_STEP),
        is_right=right is not None and re.search(case.line, line) is not None,
        line=line,
        wrong="" if worst is None else worst.sentence,
        wrong_cause="" if worst is None else worst.cause or "",
        last_step=last_step,
    )


def _is_right(case: Case, finding: Finding) -> bool:
    is_about = (finding.kind, finding.cause, finding.ranks) == (case.kind, case.cause, (RANK,))
    return is_about and re.search(case.words, finding.sentence) is not None
