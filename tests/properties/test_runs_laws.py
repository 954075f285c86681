"""Laws of the runs of two names that are started, ended, killed and silenced, in any order."""

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given

from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.runs import FORMER_RUNS_MAX
from tests.unit.collector.runs.test_runs import Launches

RUNS_MAX, RANKS_MAX, WORLD = 5, 8, 2

deeds = st.lists(
    st.tuples(
        st.sampled_from(["bert", "t5"]),
        st.sampled_from(["finished", "failed", "terminated", "interrupted", "silent"]),
        st.sampled_from([0.0, 1.0, 20.0, 59.0, 200.0]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(deeds)
def test_every_process_stays_in_its_run_and_limits_hold(
    deeds: Sequence[tuple[str, str, float, int]],
) -> None:
    launches = Launches(runs_max=RUNS_MAX, ranks_max=RANKS_MAX, restart_within_s=60)
    run_of_life: dict[str, str] = {}
    begun: list[str] = []
    for number, (name, reason, pause_s, restart_count) in enumerate(deeds):
        job = launches.launch(f"{number}-{name}", name=name, restart_count=restart_count)
        if job is not None:
            begun += [job.run] if job.run not in begun else []
            run_of_life |= {f"{number}-{name}-boot-{rank}": job.run for rank in range(WORLD)}
        if reason != "silent":
            launches.end(f"{number}-{name}", reason, reason, name=name)
        launches.wait(20).wait(pause_s)  # what is silent is so after 15 s
        known = {boot_id: job.run for job in launches.runs for boot_id in job.processes}
        assert known.items() <= run_of_life.items()
        assert launches.ids == sorted(set(launches.ids), key=lambda one: (read_run_name(one), one))
        assert len(launches.ids) <= RUNS_MAX
        assert sum(job.world_size for job in launches.runs) <= RANKS_MAX
        for one in {read_run_name(run_id) for run_id in launches.ids}:
            assert sum(read_run_name(run_id) == one for run_id in launches.ids) <= 1 + FORMER_RUNS_MAX
    for name in ("bert", "t5"):
        of_name = [run_id for run_id in begun if read_run_name(run_id) == name]
        assert of_name == sorted(of_name)


@given(deeds)
def test_the_time_of_a_run_is_its_own(deeds: Sequence[tuple[str, str, float, int]]) -> None:
    """No run is longer than from its first Hello to now, and all runs of a name together are not longer than that."""
    launches = Launches(restart_within_s=60)
    for number, (_, reason, pause_s, restart_count) in enumerate(deeds):
        launches.launch(f"{number}", restart_count=restart_count)
        launches.wait(5)
        if reason != "silent":
            launches.end(f"{number}", reason, reason)
        launches.wait(20).wait(pause_s)
    together_ns = sum(launches.goodput(run_id).wall_ns for run_id in launches.ids)
    assert together_ns <= launches.now_ns - 1_000 * 10**9
