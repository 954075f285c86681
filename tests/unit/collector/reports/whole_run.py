"""The status of a run with every rank, as text."""

from rankscope.collector.reports.status_text import render_all_ranks
from rankscope.collector.runs.run_status import build_status
from rankscope.collector.runs.snapshot import RunSnapshot


def render_run(run: RunSnapshot) -> str:
    return render_all_ranks(build_status(run, len(run.ranks)), run)
