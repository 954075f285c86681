"""A training whose ranks report to the standing collector of a test module."""

from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.serving import Served, have_ended
from tests.integration.torchrun import AGENT, forked_ranks, started


def reporting_to(served: Served, run: str, **settings: str) -> dict[str, str]:
    """The environment of ranks that report to it every 0.2 s, under this name, with these settings of the agent."""
    set_here = {"report_interval_s": "0.2", "collective_window_s": "0.5", "overhead_ratio_max": "0.2", **settings}
    return {
        "RANKSCOPE_COLLECTOR": served.endpoint,
        "RANKSCOPE_RUN": run,
        **{f"RANKSCOPE_{name.upper()}": text for name, text in set_here.items()},
    }


def train_to_end(served: Served, run: str, ranks: int, *words: str, **settings: str) -> tuple[list[str], RunSnapshot]:
    """Train with a script and its options, and have no trouble; the lines that it has printed, and what is known of the
    run at its end.
    """
    with started(forked_ranks(ranks, *AGENT, *words), reporting_to(served, run, **settings)) as job:
        ended = job.wait()
    assert (ended.exit_code, ended.heard_of_agent) == (0, [])
    return ended.stdout.splitlines(), served.wait_for_run(run, have_ended)
