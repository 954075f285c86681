"""A job that reports to a collector that stands: rank 0 says so at the start, and at the end what has arrived."""

import re
from pathlib import Path

from tests.integration.serving import serving, wait_for
from tests.integration.torchrun import AGENT, OFTEN, forked_ranks, started

LINES = re.compile(r"^rankscope: (.*)$", re.MULTILINE)


def test_rank_0_names_collector_at_start_and_deliveries_at_end(tmp_path: Path) -> None:
    stop, stderr = tmp_path / "stop", tmp_path / "stderr"
    stderr.touch()
    command = forked_ranks(2, *AGENT, "paced.py", "--stop", str(stop))
    with serving() as served:
        page = f"http://127.0.0.1:{served.ports[1]}"
        settings = {"RANKSCOPE_RUN": "my run", "RANKSCOPE_DRAIN_S": "60"}  # a busy machine takes longer than 3 s
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": served.endpoint, **settings}
        with started(command, environment, stderr_path=str(stderr)) as job:
            (start,) = wait_for(lambda: LINES.findall(stderr.read_text()) or None, stderr.read_text)
            stop.touch()
            assert job.wait().exit_code == 0
    place = " (on the collector's machine only)"
    assert start == f"run 'my run' reports to {served.endpoint}; its page is {page}{place}"
    _, end = LINES.findall(stderr.read_text())
    status = f"`rankscope status 'my run' --url {page}` shows how the run went{place}"
    assert re.sub(r"\d+ reports", "N reports", end) == f"run 'my run': all N reports of rank 0 were delivered; {status}"
