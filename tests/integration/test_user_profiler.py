"""The user's own torch.profiler beside the agent: its trace is whole, ours gives way and comes back."""

from tests.integration.listening_collector import listening
from tests.integration.test_launch import AGENT, QUICK, check_steps
from tests.integration.torchrun import run, torchrun

SCRIPT = ("small_ddp.py", "--steps", "80", "--profile")


def profiled(stdout: str) -> list[str]:
    return sorted(line for line in stdout.splitlines() if line.startswith("profiled"))


def test_users_profiler_sees_the_same_with_and_without_us() -> None:
    plain = run(torchrun(2, *SCRIPT))
    with listening() as collector:
        watched = run(torchrun(2, *AGENT, *SCRIPT), {**QUICK, "RANKSCOPE_COLLECTOR": collector.endpoint})
    assert (plain.exit_code, watched.exit_code) == (0, 0)
    # Four active steps of a rank, two linear layers each.
    assert profiled(plain.stdout) == profiled(watched.stdout) == [f"profiled {rank} 4 8" for rank in range(2)]
    for life in collector.lives:
        check_steps(life, 80)
        assert life.losses.windows_skipped["user_profiler"] >= 1
        covered = {step for report in life.reports for first, last in report.covered_steps for step in range(first, last + 1)}
        # Off while the user's profiler warms up and records (steps 8 to 13), and back when it has ended.
        assert not covered & set(range(9, 14))
        assert max(covered) > 13
