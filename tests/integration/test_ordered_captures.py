"""Ordered captures over the wire: a whole collector, and ranks that answer as the agent does."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankscope.collector.captures.capture import Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.service import Service
from rankscope.measure.messages import CaptureOrder, Message, Report
from rankscope.measure.records import StepRecord, Totals, steps_to_table
from tests.integration.ordering_collectors import running, wait_for_end
from tests.integration.relaying import relaying
from tests.integration.serving import wait_for
from tests.integration.wire_peer import Peer, connected
from tests.unit.collector.captures.answering_ranks import AnsweringRank

MS = 1_000_000


def make_trace() -> bytes:
    """A trace of two steps with an operator each, as a rank would have written it."""
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": at_us, "dur": length_us, "args": {}}
        for step in (0, 1)
        for cat, name, at_us, length_us in (
            ("user_annotation", f"ProfilerStep#{step}", 1000 * step, 1000),
            ("cpu_op", "aten::mm", 1000 * step + 100, 500),
        )
    ]
    whole = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
    return gzip.compress(json.dumps(whole).encode())


def train(service: Service, peer: Peer) -> None:
    """Report one step, and wait until the collector has it."""
    peer.sequence += 1
    step = StepRecord(step=0, start_host_ns=0, duration_ns=100 * MS, phases_ns={"forward": 100 * MS})
    totals = Totals(steps=1, step_ns=100 * MS)
    peer.send(Report(sequence=peer.sequence, host_ns=100 * MS, steps=steps_to_table([step]), totals=totals))

    def look() -> bool | None:
        runs = service.snapshot.runs
        return True if runs and runs[0].ranks and runs[0].ranks[0].last_step == 0 else None

    wait_for(look, lambda: str(service.snapshot.runs))


def order(service: Service) -> Capture:
    found = service.captures.order(CaptureRequest(run="good", ranks="all", steps=2))
    assert isinstance(found, Capture)
    return found


def answer_until_over(service: Service, peer: Peer, rank: AnsweringRank) -> Capture:
    """Answer orders and send the file; return the capture once it has ended."""
    while True:
        message = peer.await_answer(Message)
        said = rank.answer(message)
        if said is not None:
            peer.send(said)
        if isinstance(message, CaptureOrder) and message.is_over:
            break

    return wait_for_end(service)


def test_capture_is_ordered_fetched_and_analyzed(tmp_path: Path) -> None:
    with running(tmp_path) as service, connected(service.endpoint, "boot-one") as peer:
        train(service, peer.join())
        order(service)
        done = answer_until_over(service, peer, AnsweringRank(make_trace(), next_step=1))
    names = {file.name for file in done.files}
    assert (done.state, done.problem) == ("complete", "")
    assert names == {"rank-0.pt.trace.json.gz", "report.html", "report.json", "report.txt"}
    assert done.verdict


def test_capture_passes_a_relay(tmp_path: Path) -> None:
    with (
        running(tmp_path) as service,
        relaying(service.endpoint) as relay,
        connected(relay.endpoint, "boot-one") as peer,
    ):
        train(service, peer.rejoin())
        order(service)
        done = answer_until_over(service, peer, AnsweringRank(make_trace(), next_step=1))
    assert (done.state, done.ranks[0].state) == ("complete", "fetched")


def test_of_ten_orders_at_once_one_is_taken(tmp_path: Path) -> None:
    with running(tmp_path) as service, connected(service.endpoint, "boot-one") as peer:
        train(service, peer.join())
        with ThreadPoolExecutor(10) as pool:
            found = list(pool.map(lambda _: service.captures.order(CaptureRequest(run="good", ranks="all")), range(10)))
    assert sorted(one.status if isinstance(one, CaptureRefusal) else 202 for one in found) == [202, *[409] * 9]


@pytest.mark.parametrize("content", [make_trace(), b"no trace"])
def test_restarted_collector_delivers_the_capture(tmp_path: Path, content: bytes) -> None:
    with running(tmp_path) as service, connected(service.endpoint, "boot-one") as peer:
        endpoint = service.endpoint
        train(service, peer.join())
        asked = order(service)
        first_step = peer.await_answer(CaptureOrder).first_step
    # One second (the reports have no interval) is 10 steps of 100 ms, and 2 more after step 0.
    assert first_step == 12
    with running(tmp_path, endpoint) as service, connected(endpoint, "boot-one") as peer:
        peer.rejoin()
        done = answer_until_over(service, peer, AnsweringRank(content, next_step=1))
    assert (done.id, done.state, done.ranks[0].first_step) == (asked.id, "complete", first_step)
