"""What of an outcome is not as it should be. Pure."""

from tests.frameworks.outcome import Outcome


def find_problems(outcome: Outcome) -> list[str]:
    """Return what is not as it should be; nothing where the row is good."""
    if outcome.error:
        return [outcome.error]
    problems = list(outcome.differs)
    if outcome.theirs != outcome.ours:
        problems.append(f"steps {outcome.ours}, by the framework's count {outcome.theirs}")
    if outcome.named != (outcome.slow_rank,):
        problems.append(f"named {outcome.named}, slow was {outcome.slow_rank}: {outcome.sentence}")
    return problems + [f"accused: {one}" for one in outcome.accused]
