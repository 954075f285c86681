"""Keep what a pass of a detector leaves for the next one about an open finding, apart from what the finding tells.

Detectors are pure: all state is in the run's open findings. A level from before a slowness, which has left the step
table, is such state, and no figure for users. So a detector gives a finding that holds a memory (`remember`), the run
parts the two before anything is told (`forget`), and joins them again for the next pass. A Finding has no field for it:
no view, event or alert can show it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.collector.detect.finding import Finding

MEMORY_VERSION: Final = 1
"""To be raised where a field gets another meaning, or is needed by a detector: memories of another version are left
out, and their findings are found anew."""


class FindingMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a detector remembers of an open finding. Times are in ns; None, 0 and empty: nothing is.

    `steps_to_close`: known steps without slowness that close it, as many as had opened it. `step_before_ns`: the step
    before anything that the finding is about was slow. `level_from_step`: the first step of the present level of a
    slowness that was larger or smaller before; `told_level_step` that of the level that its sentence states, 0 once
    there was a later one. `gap_known_steps`: the usual gap between slow periods, in known steps. `usual`: the usual
    excess of ranks without peers (`statistics/excess.py`), by rank, as a logarithm.

    `before_ns`: the level that it is compared with; `after_ns` the level since, when it was found; `robust_z` by how
    many standard errors they differ; `tokens` in a rank's batch that `before_ns` counts for, `more_tokens` how many
    times as many these are as in the steps before, where none had as many. `pasts_ns`: the past transfers that slow
    groups are compared with, `transfer_excesses_ns` by how much theirs are longer; both by group.
    `model`: the model of GPU that it is about. `holds_while_found`: it has passed once `find` does not give it again.
    """

    steps_to_close: int = 0
    step_before_ns: float | None = None
    level_from_step: int | None = None
    told_level_step: int | None = None
    gap_known_steps: float = 0.0
    usual: Mapping[int, float] = {}
    before_ns: float | None = None
    after_ns: float | None = None
    robust_z: float = 0.0
    tokens: float = 0.0
    more_tokens: float = 1.0
    pasts_ns: Mapping[str, float] = {}
    transfer_excesses_ns: Mapping[str, float] = {}
    model: str = ""
    holds_while_found: bool = False


NO_MEMORY: Final = FindingMemory()
FORMER_KEYS: Final = frozenset(
    {"gap_known_steps", "step_before_ns", "steps_to_close", "told_level_from_step", "tokens_before"}
)
FORMER_PREFIXES: Final = ("past_transfer_ns/", "transfer_excess_ns/", "usual_log_excess/")
"""What findings had in their evidence when they had no memory, by its name or how that begins."""


class HeldFinding(Finding, frozen=True, kw_only=True):
    """A finding with its memory: what detectors give and get."""

    memory: FindingMemory


def recall(finding: Finding | None) -> FindingMemory:
    """Return the memory of a finding; an empty one where it has none."""
    return finding.memory if isinstance(finding, HeldFinding) else NO_MEMORY


def remember(finding: Finding, memory: FindingMemory) -> Finding:
    """Return a finding with this memory in place of any other."""
    if memory == NO_MEMORY:
        return forget(finding)
    return HeldFinding(**{**msgspec.structs.asdict(finding), "memory": memory})


def forget(finding: Finding) -> Finding:
    """Return a finding without a memory, as it is told.

    >>> found = remember(Finding(kind="straggler", ranks=(2,), cause="host_cpu"), FindingMemory(steps_to_close=12))
    >>> recall(found).steps_to_close, recall(forget(found)) == NO_MEMORY, forget(found).subject
    (12, True, 'rank 2')
    """
    if not isinstance(finding, HeldFinding):
        return finding
    return Finding(**{name: getattr(finding, name) for name in Finding.__struct_fields__})


def drop_former(evidence: Mapping[str, float]) -> Mapping[str, float]:
    """Return evidence, of a store perhaps, without what is in memories now.

    >>> drop_former({"own_ns": 5.0, "steps_to_close": 30.0, "usual_log_excess/2": 0.1})
    {'own_ns': 5.0}
    """
    kept = {
        name: value
        for name, value in evidence.items()
        if name not in FORMER_KEYS and not name.startswith(FORMER_PREFIXES)
    }
    return kept if len(kept) < len(evidence) else evidence
