"""RankSamples: which samplers a rank has, when they run, and what is known before and without them."""

import gc

from rankscope.agent.config import read_config
from rankscope.agent.guard import Guard
from rankscope.agent.sample.rank_samples import RankSamplers
from rankscope.agent.sample.torch_device import TrainingDevice
from rankscope.measure.clock import SystemClock
from rankscope.measure.units import NS_PER_S


def make_samples(*, reads_machine: bool = True, **settings: str) -> RankSamplers:
    config, guard = read_config(settings), Guard(error_budget=3)
    return RankSamplers(config, SystemClock(), guard, TrainingDevice(), reads_machine=reads_machine)


def test_nothing_is_known_before_the_first_sample() -> None:
    samples = make_samples()
    assert (samples.host, samples.devices, samples.allocator) == (None, (), None)
    samples.close()


def test_the_process_is_sampled_when_due_and_at_the_end() -> None:
    samples = make_samples(RANKSCOPE_CONSTANT_SAMPLE_INTERVAL_S="5")
    now_ns = SystemClock().monotonic_ns()
    samples.run(now_ns, last=False)
    first = samples.host
    assert first is not None
    samples.run(now_ns + NS_PER_S, last=False)
    assert samples.host is first
    samples.run(now_ns + 6 * NS_PER_S, last=False)
    second = samples.host
    assert second is not None
    assert second is not first
    samples.run(now_ns + 6 * NS_PER_S + 1, last=True)
    assert samples.host is not second
    samples.close()


def test_a_gpu_that_is_not_wanted_is_not_sampled() -> None:
    samples = make_samples(RANKSCOPE_GPU="0")
    samples.run(0, last=True)
    assert set(samples.loop.counts) == {"host", "node"}
    samples.close()


def test_only_the_rank_that_reads_the_machine_samples_it() -> None:
    others = make_samples(reads_machine=False)
    others.run(0, last=True)
    assert (others.pop_node(), "node" in others.loop.counts) == (None, False)
    others.close()
    unwanted = make_samples(RANKSCOPE_CONSTANT_NODE_SAMPLES="0")
    assert "node" not in unwanted.loop.counts
    unwanted.close()


def test_each_sample_of_the_machine_is_reported_once() -> None:
    samples = make_samples()
    assert samples.pop_node() is None
    samples.run(0, last=True)
    found = samples.pop_node()
    assert found is not None
    assert found.tcp_segments_sent is not None
    samples.run(0, last=True)  # no ten seconds later
    assert samples.pop_node() is None
    samples.close()


def test_gc_pauses_are_counted_between_start_and_stop() -> None:
    samples = make_samples()
    callbacks = len(gc.callbacks)
    samples.start()
    assert len(gc.callbacks) == callbacks + 1
    gc.collect()
    samples.run(0, last=True)
    samples.stop()
    assert len(gc.callbacks) == callbacks
    assert samples.host is not None
    assert (samples.host.gc_pause_ns or 0) > 0
    samples.close()


def test_resident_memory_can_be_asked_for_at_any_time() -> None:
    samples = make_samples()
    assert (samples.find_resident_bytes() or 0) > 2**20
    samples.close()
