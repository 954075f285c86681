"""Say whether a step of two runs is the same work. Pure.

Two runs of one script on as many ranks, with batches of one size and numbers of one type, make equal steps: then a
difference of their times is one of speed. What is not known of a run is not compared.
"""

from typing import Final, NamedTuple

WORK_TOLERANCE: Final = 0.02
"""Samples, tokens and FLOPs of a step may differ by so much and count as equal: last batches are smaller, and texts
differ."""


class Work(NamedTuple):
    """What is known of the work in a step of a run. Samples, tokens and the model's FLOPs are those of one rank in one
    step, None where not known; `script` is the file name of the training script, `peak_type` the type of the numbers
    that the FLOPs are computed with (`bf16`), each empty where not known.
    """

    world_size: int
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    model_flops_per_step: float | None = None
    script: str = ""
    peak_type: str = ""


def find_unequal(a: Work, b: Work) -> list[str]:
    """Return why a step of A and one of B are not the same work, as far as that is known; empty where they are.

    >>> find_unequal(Work(8, 32.0, script="train.py"), Work(8, 32.5, script="train.py"))
    []
    >>> find_unequal(Work(8, 32.0, script="train.py"), Work(16, 64.0, script="eval.py"))[2]
    'a step of a rank has 32.0 samples in A and 64.0 in B'
    """
    found = []
    if a.world_size != b.world_size:
        found.append(f"A has {a.world_size} ranks and B {b.world_size}")
    for what, of_a, of_b in (("script", a.script, b.script), ("type of numbers", a.peak_type, b.peak_type)):
        if of_a and of_b and of_a != of_b:
            found.append(f"the {what} is {of_a} in A and {of_b} in B")
    amounts = (
        ("samples", a.samples_per_step, b.samples_per_step),
        ("tokens", a.tokens_per_step, b.tokens_per_step),
    )
    for name, of_one, of_other in amounts:
        if _differ(of_one, of_other):
            found.append(f"a step of a rank has {of_one:,.1f} {name} in A and {of_other:,.1f} in B")
    if _differ(a.model_flops_per_step, b.model_flops_per_step):
        flops = f"{a.model_flops_per_step:.4g} model FLOPs in A and {b.model_flops_per_step:.4g} in B"
        found.append(f"a step of a rank has {flops}")
    return found


def has_same_fingerprint(a: Work, b: Work) -> bool:
    """Return whether two runs, also of different names, do the same work for all that identifies it: their script and
    its model FLOPs are known, and nothing differs.

    >>> has_same_fingerprint(Work(8, model_flops_per_step=1e15, script="a.py"), Work(8, script="a.py"))
    False
    """
    are_known = bool(a.script and b.script and a.model_flops_per_step and b.model_flops_per_step)
    return are_known and not find_unequal(a, b)


def _differ(a: float | None, b: float | None) -> bool:
    return bool(a and b and max(a, b) > (1 + WORK_TOLERANCE) * min(a, b))
