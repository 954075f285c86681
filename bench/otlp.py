"""What a push of all metrics by OTLP costs: `python -m bench.otlp [--ranks 64 1024 16384]`.

Every rank has everything, as in `exposition.py`. The receiver is a process of its own on loopback; it decodes each
request, as any receiver does, and keeps its size. It accepts 4 MiB a message over gRPC. The CPU time is that of the
pushing process. Its pauses, by which a push uses half a core at most, are in the time, and so is the waiting for a
receiver that shares the cores.
"""

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from bench.exposition import MIB, build_snapshot, watch_gaps
from bench.machine import RESULTS, describe_run
from rankscope.collector.config import CollectorConfig
from rankscope.collector.otlp.endpoint import OTLP_GRPC, OTLP_PROTOCOLS
from rankscope.collector.process_tuning import raise_gc_threshold, read_resident_bytes, shorten_switch_interval
from rankscope.collector.publish.otlp_push import make_push
from tests.otlp_receivers import Received, receiving_grpc, receiving_http

SIZES = (64, 1_024, 16_384)
RANKS_FIRST = 8


class Result(NamedTuple):
    """One push. `memory_bytes` is by how much the process grew at most; `gap_s` how long another thread waited for the
    interpreter at most.
    """

    ranks: int
    protocol: str
    requests: int
    sent_bytes: int
    request_bytes_max: int
    cpu_s: float
    wall_s: float
    memory_bytes: int
    gap_s: float


class Sizes(Received):
    """Keeps the sizes of requests only."""

    def add(self, request: Any, headers: object) -> None:  # noqa: ARG002 - as Received has it
        """Keep the size."""
        with self.changed:
            self.sizes.append(request.ByteSize())


def receive(connection: Connection, protocol: str) -> None:
    """Be a receiver: send its address, and its sizes when asked."""
    with receiving_grpc() if protocol == OTLP_GRPC else receiving_http() as receiver:
        receiver.received = Sizes()
        connection.send(receiver.url)
        while connection.recv():
            connection.send(receiver.received.sizes)


@contextmanager
def receiving_apart(protocol: str) -> Iterator[tuple[str, Connection]]:
    """A receiver in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    own, theirs = spawning.Pipe()
    process = spawning.Process(target=receive, args=(theirs, protocol))
    process.start()
    try:
        yield own.recv(), own
    finally:
        process.kill()
        process.join()


def list_sizes(receiver: Connection) -> list[int]:
    """The sizes of all requests that a receiver has got so far, in bytes."""
    receiver.send(True)
    sizes: list[int] = receiver.recv()
    return sizes


def measure(ranks: int, protocol: str) -> Result:
    """Push a small run, which connects, and then this one, which is measured."""
    snapshots = [build_snapshot(ranks), build_snapshot(RANKS_FIRST)]
    shorten_switch_interval()  # as the publisher does
    raise_gc_threshold()
    os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = protocol
    with receiving_apart(protocol) as (url, receiver):
        config = CollectorConfig(otlp=True, otlp_endpoint=url, otlp_all_ranks=True)
        push = make_push(config, 18491, lambda: snapshots[-1])
        if push is None or push.push() != "delivered":
            raise RuntimeError(f"nothing could be pushed to {url}")
        first = len(list_sizes(receiver))
        snapshots.pop()
        before = read_resident_bytes()
        with watch_gaps() as gaps:
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            outcome = push.push()
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        if outcome != "delivered":
            raise RuntimeError(f"the second push {outcome}")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        own = list_sizes(receiver)[first:]
        push.close()
    return Result(ranks, protocol, len(own), sum(own), max(own), cpu_s, wall_s, max(0, grown), gaps.longest_s)


def describe(results: list[Result], head: str) -> str:
    """The results as Markdown."""
    rows = [
        f"| {one.ranks:,} | {one.protocol} | {one.requests} | {one.sent_bytes / MIB:.1f} MiB | "
        f"{one.request_bytes_max / MIB:.2f} MiB | {one.cpu_s:.2f} s | {one.wall_s:.1f} s | "
        f"{one.memory_bytes / MIB:.0f} MiB | {one.gap_s * 1000:.0f} ms |"
        for one in results
    ]
    text = (
        "One push each, all metrics of all ranks, every rank with everything. The receiver is on the same machine and "
        "shares\nits cores. A push uses half a core at most, which is most of the difference between CPU and time. "
        "Memory is by how\nmuch the process grew at most. The wait is the longest for which another thread did not get "
        "the interpreter."
    )
    columns = "| ranks | protocol | requests | sent | largest | CPU | time | memory | wait |"
    return "\n".join(
        [
            "# What a push by OTLP costs",
            "",
            head,
            "",
            text,
            "",
            columns,
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--output", type=Path, default=RESULTS / "otlp.md")
    options = parser.parse_args()
    given = " ".join(map(str, options.ranks))
    head = describe_run(f"python -m bench.otlp --ranks {given}")
    results = [measure(ranks, protocol) for ranks in options.ranks for protocol in OTLP_PROTOCOLS]
    page = describe(results, head)
    print(page)
    options.output.write_text(page)


if __name__ == "__main__":
    main()
