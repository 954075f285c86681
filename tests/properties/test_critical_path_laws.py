"""Laws of critical paths: each is one chain without gaps, as long as its step; made schedules have the known one."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.traces import analyze
from rankscope.collector.traces.asked import Asked
from rankscope.collector.traces.critical_path import At, PathInput, Stretch, Walk, find_critical_path, prepare
from rankscope.collector.traces.path_record import PathRecord
from rankscope.collector.traces.rank_analysis import reduce_trace
from rankscope.collector.traces.shortened_path import add_shortened, play
from tests.properties.test_step_parts_laws import traces
from tests.unit.measure.written_traces import Event, event, kernel, read_events, to_json

# -- any trace --------------------------------------------------------------------------------------------------------


def record_of(events: list[Event]) -> PathRecord | None:
    return reduce_trace(read_events(*events), "rank0.json", asked=Asked(critical_path=True)).path


def is_chain(path: list[Stretch], start_ns: int, end_ns: int) -> bool:
    edges = [(one.start_ns, one.end_ns) for one in path if one.start_ns < one.end_ns]
    joined = all(earlier[1] == later[0] for later, earlier in pairwise(edges))
    return joined and edges[0][1] == end_ns and edges[-1][0] == start_ns


@given(traces)
def test_path_of_one_rank_covers_its_steps_without_gaps(events: list[Event]) -> None:
    record = record_of(events)
    if record is not None:
        walk = Walk([record], [0], {})
        for bounds in walk.steps_of(0).values():
            assert is_chain(walk.follow(0, bounds), bounds.start_ns, bounds.end_ns)


@given(st.data())
def test_path_across_ranks_covers_its_steps_without_gaps(data: st.DataObject) -> None:
    records = [
        record for events in data.draw(st.lists(traces, min_size=2, max_size=3)) if (record := record_of(events))
    ]
    places = [At(key, place) for key, record in enumerate(records) for place in range(len(record.start_ns))]
    late = data.draw(st.dictionaries(st.sampled_from(places), st.sampled_from(places))) if places else {}
    walk = Walk(records, [data.draw(st.integers(-30_000, 30_000)) for _ in records], late)
    for key in range(len(records)):
        for bounds in walk.steps_of(key).values():
            assert is_chain(walk.follow(key, bounds), bounds.start_ns, bounds.end_ns)


# -- made schedules ---------------------------------------------------------------------------------------------------

COMPUTE, SIDE, NCCL = 7, 8, 9
LATENCY_NS, CALL_NS, TRANSFER_NS, LATENESS_NS = 1_000, 2_000, 20_000, 5_000
RUN = 3_000_000


class Made:
    """One piece of work of a made schedule, with what it waited for: other work, else the host, which ran since
    `host_since_ns`, when `released_by` ended.
    """

    def __init__(self, rank: int, stream: int, call_ns: int, causes: list["Made"]) -> None:
        self.rank, self.stream, self.call_ns = rank, stream, call_ns
        self.end_ns = 0
        last = max(causes, key=lambda one: one.end_ns, default=None)
        self.cause = last if last is not None and last.end_ns >= call_ns else None
        self.cause_ns = self.cause.end_ns if self.cause is not None else call_ns
        self.start_ns = self.cause_ns + LATENCY_NS
        self.last_in: Made | None = None
        self.released_by: Made | None = None


class Rank(NamedTuple):
    """What one rank has done so far."""

    events: list[Event]
    work: list[Made]


class Schedule:
    """Two ranks that run the same drawn program with lengths of their own, and what each piece of work waited for;
    kernels take `share` of theirs. The host waits for the device where it `syncs`.
    """

    def __init__(self, seed: int, share: float = 1.0, *, syncs: bool = True) -> None:
        self.random, self.ids, self.share = Random(seed), iter(range(1, 10**6)), share
        self.ranks = [Rank([], []), Rank([], [])]
        self.host_ns = [0, 0]
        self.released: list[Made | None] = [None, None]
        self.pending: list[dict[int, Made]] = [{}, {}]
        for _ in range(40):
            steps = [self.operate, self.launch, self.launch, self.launch, self.reduce, self.wait]
            self.random.choice([*steps, self.sync] if syncs else steps)()
        self.reduce()

    def lengths(self, most_ns: int) -> tuple[int, int]:
        return self.random.randint(1_000, most_ns), self.random.randint(1_000, most_ns)

    def call(self, rank: int, name: str, length_ns: int, category: str = "cuda_runtime") -> int:
        number = next(self.ids)
        start_ns = self.host_ns[rank]
        self.ranks[rank].events.append(event(category, name, start_ns / 1000, length_ns / 1000, correlation=number))
        self.host_ns[rank] += length_ns
        return number

    def operate(self) -> None:
        for rank, length_ns in enumerate(self.lengths(60_000)):
            self.call(rank, "aten::op", length_ns, "cpu_op")

    def enqueue(self, rank: int, stream: int) -> tuple[Made, int]:
        """Launch work on a stream, behind what is there and what the stream waits for."""
        done = self.ranks[rank].work
        causes = [one for one in done[::-1] if one.stream == stream][:1]
        causes += [self.pending[rank].pop(stream)] if stream in self.pending[rank] else []
        made = Made(rank, stream, self.host_ns[rank], causes)
        made.released_by = self.released[rank]
        done.append(made)
        return made, self.call(rank, "cudaLaunchKernel", CALL_NS)

    def launch(self) -> None:
        stream = self.random.choice([COMPUTE, SIDE])
        for rank, length_ns in enumerate(self.lengths(90_000)):
            made, number = self.enqueue(rank, stream)
            made.end_ns = made.start_ns + round(self.share * length_ns)
            self.ranks[rank].events.append(self.kernel_of(made, "gemm", correlation=number))

    def kernel_of(self, made: Made, name: str, **args: object) -> Event:
        length_us = (made.end_ns - made.start_ns) / 1000
        return kernel(name, made.start_ns / 1000, length_us, stream=made.stream, **args)

    def reduce(self) -> None:
        self.wait_for(COMPUTE, NCCL)
        calls = [self.enqueue(rank, NCCL) for rank in range(2)]
        last = max((made for made, _ in calls), key=lambda one: one.start_ns)
        for rank, (made, number) in enumerate(calls):
            made.end_ns, made.last_in = last.start_ns + TRANSFER_NS, last
            arguments = {
                "Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
                "Group size": 2, "dtype": "Byte", "In msg nelems": 8, "Out msg nelems": 8,
                "Seq": sum(one.stream == NCCL for one in self.ranks[rank].work),
            }  # fmt: skip
            self.ranks[rank].events.append(self.kernel_of(made, "ncclDevKernel", correlation=number, **arguments))
        self.wait_for(NCCL, COMPUTE)

    def wait(self) -> None:
        self.wait_for(*self.random.sample([COMPUTE, SIDE], 2))

    def wait_for(self, awaited: int, stream: int) -> None:
        for rank, one in enumerate(self.ranks):
            record = self.call(rank, "cudaEventRecord", CALL_NS)
            wait = self.call(rank, "cudaStreamWaitEvent", CALL_NS)
            recorded = {"stream": stream, "wait_on_stream": awaited, "wait_on_cuda_event_record_corr_id": record}
            one.events.append(event("cuda_sync", "Stream Wait Event", 0, 1, correlation=wait, **recorded))
            found = [made for made in one.work if made.stream == awaited][-1:]
            before = self.pending[rank].get(stream)
            if found and (before is None or found[0].end_ns > before.end_ns):
                self.pending[rank][stream] = found[0]

    def sync(self) -> None:
        for rank, one in enumerate(self.ranks):
            last = max(one.work, key=lambda made: made.end_ns, default=None)
            waits_ns = last.end_ns - self.host_ns[rank] if last is not None else 0
            self.call(rank, "cudaDeviceSynchronize", max(waits_ns, 0) + CALL_NS)
            if waits_ns > 0:
                self.released[rank] = last

    def follow(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield kind, rank, start and end of the true path, from the end of the rank that ends last."""
        made = max((one for rank in self.ranks for one in rank.work), key=lambda one: (one.end_ns, -one.rank))
        at_ns = made.end_ns
        while True:
            kind = "communication" if made.stream == NCCL else "compute"
            last = made.last_in
            moves = last is not None and last.start_ns - made.start_ns >= LATENESS_NS
            since_ns = last.start_ns if moves and last is not None else made.start_ns
            yield kind, made.rank, since_ns, at_ns
            made = last if moves and last is not None else made
            yield "unexplained" if made.cause else "launch", made.rank, made.cause_ns, made.start_ns
            if made.cause is not None:
                made, at_ns = made.cause, made.cause_ns
                continue
            before = made.released_by
            yield "host", made.rank, before.end_ns if before is not None else -RUN, made.call_ns
            if before is None:
                return
            made, at_ns = before, before.end_ns


def write_ranks(folder: Path, made: Schedule) -> None:
    for rank, one in enumerate(made.ranks):
        head = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": 10**18, "host_name": "a"}
        whole = event("user_annotation", "ProfilerStep#1", 0, RUN / 1000)
        (folder / f"rank{rank}.json").write_bytes(to_json(whole, *one.events, **head))


@pytest.mark.parametrize("seed", range(40))
def test_made_schedules_have_the_path_they_were_made_with(tmp_path: Path, seed: int) -> None:
    made = Schedule(seed)
    write_ranks(tmp_path, made)
    path = analyze(str(tmp_path), critical_path=True).critical_path
    assert path is not None
    (step,) = path.steps
    assert step.rank is not None
    start_ns = min(one.start_ns for one in made.ranks[step.rank].work)
    kinds, ranks = Counter[str](), Counter[str]()
    for kind, on, since_ns, until_ns in made.follow():
        kinds[kind] += max(until_ns - max(since_ns, start_ns), 0)
        ranks[str(on)] += max(until_ns - max(since_ns, start_ns), 0)
    found = {
        kind: getattr(step, f"{kind}_ns") for kind in ("host", "launch", "compute", "communication", "unexplained")
    }
    assert (found, step.rank_ns) == (
        {kind: kinds[kind] for kind in found},
        {rank: ns for rank, ns in ranks.items() if ns},
    )


def simulate(folder: Path, seed: int, share: float, *, syncs: bool) -> tuple[int, int, int]:
    """Return the length of the step with shorter kernels as it is simulated and as it is made, and that before."""
    write_ranks(folder, Schedule(seed, syncs=syncs))
    path = analyze(str(folder), critical_path=True, shorten={"gemm": share}).critical_path
    assert path is not None
    assert path.shortened is not None
    (step,) = path.shortened.steps
    made = Schedule(seed, share, syncs=syncs).ranks
    start_ns = min(one.start_ns for one in made[step.rank or 0].work)
    return step.after_ns, max(one.end_ns for rank in made for one in rank.work) - start_ns, step.before_ns


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_schedules_simulated_with_shorter_kernels_are_as_made(tmp_path: Path, seed: int, share: float) -> None:
    simulated_ns, made_ns, before_ns = simulate(tmp_path, seed, share, syncs=False)
    assert simulated_ns == made_ns <= before_ns


@pytest.mark.parametrize("seed", range(8))
def test_simulation_with_host_waits_saves_no_less_than_is_saved(tmp_path: Path, seed: int) -> None:
    # What the host did not wait for in the record, it does not wait for when simulated.
    simulated_ns, made_ns, before_ns = simulate(tmp_path, seed, 0.5, syncs=True)
    assert simulated_ns <= made_ns < before_ns
    assert made_ns - simulated_ns < 0.1 * (before_ns - made_ns)


@given(traces, st.sampled_from(["gemm", "aten", "."]), st.floats(0, 1))
def test_simulated_work_ends_no_later_and_its_paths_are_whole(events: list[Event], pattern: str, share: float) -> None:
    record = record_of(events)
    if record is None:
        return
    ranks = [PathInput(0, record, [], {}, on_device=True)]
    (replay,) = play(prepare(ranks, None, ()), {pattern: share})
    assert all(new <= was for new, was in zip(replay.new_end_ns, replay.end_ns, strict=True))
    path = find_critical_path(ranks, None)
    found, same = (add_shortened(path, {pattern: one}, ranks, None, ()).shortened for one in (share, 1.0))
    assert found is not None
    assert same is not None
    assert same.after_ns == same.before_ns == found.before_ns
    assert [note for note in found.notes if "left out" in note] == []
