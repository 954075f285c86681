"""The user's own torch.profiler beside the agent: its traces are whole, ours gives way and comes back."""

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, OFTEN, Ended, forked_ranks, run

# What profiled.py does: the steps profiled from the start, two cycles of 6 waiting, 2 warming up and 4 active ones,
# 60 during which another thread profiles, and 40 more.
PROFILED = {*range(3), *range(3 + 6, 3 + 12), *range(3 + 18, 3 + 24)}
STEPS = 3 + 24 + 60 + 40


def find_traces(ended: Ended) -> list[str]:
    return sorted(line for line in ended.stdout.splitlines() if line.startswith("rank "))


def test_users_traces_hold_the_same_events_with_and_without_us() -> None:
    plain = run(forked_ranks(2, "profiled.py"))
    with listening() as collector:
        watched = run(forked_ranks(2, *AGENT, "profiled.py"), {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint})
    assert (plain.exit_code, watched.exit_code, watched.left) == (0, 0, ())
    assert find_traces(watched) == find_traces(plain)
    # Per step one all-reduce, and two layers with one product each.
    (cycle,) = {line.partition(", ")[2] for line in find_traces(plain) if "scheduled" in line}
    assert cycle == "4 marks, 4 all-reduces, 8 products"
    for life in collector.lives:
        assert [record.step for record in life.steps] == list(range(STEPS))
        assert life.losses.windows_skipped["user_profiler"] >= 1
        assert life.losses.errors == {}
        assert not life.covered_steps & PROFILED
        assert max(life.covered_steps) > max(PROFILED)  # windows have come again
