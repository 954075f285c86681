"""Law of the page of metrics: for any names and numbers it equals the library writer's."""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from rankscope.collector.publish.metrics.measures import GPUS_PER_RANK_MAX, PHASE_NAMES_MAX
from rankscope.collector.publish.metrics.pages import METRICS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.text_format import Lines, TextFormat, render_numbers, render_samples
from rankscope.collector.runs.snapshot import CollectorCounts, RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import DeviceSample, HostSample, Losses, Totals
from tests.full_snapshot import full_snapshot, with_runs
from tests.library_exporter import render_by_library

PARSERS: dict[TextFormat, Callable[[str], Iterable[Metric]]] = {
    TextFormat.CLASSIC: parse_classic,
    TextFormat.OPENMETRICS: parse_openmetrics,
}

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"', "\\", "\n", '\\"\n', "\\n", "} 1\nrankscope_steps_total 9", "# EOF", "null", "true,", ",", "\x00", "\r"]
)
"""Whatever a report can carry: UTF-8 without surrogates."""
counts = st.integers(0, 2**62)
ratios = st.none() | st.floats()


@st.composite
def ranks(draw: st.DrawFn, run: str, rank: int) -> RankSnapshot:
    """Return a rank with names and numbers of all kinds."""
    identity = RankIdentity(
        run=run, rank=rank, local_rank=0, world_size=3, node=draw(names), restart_count=0, boot_id="boot-of-it", pid=1
    )  # fmt: skip
    kinds = draw(st.lists(st.tuples(names, names, counts, ratios), max_size=3))
    devices = st.builds(
        DeviceSample, host_ns=st.just(0), uuid=names, model=names, power_watts=ratios, utilization_ratio=ratios,
        nvlink_tx_bytes=st.none() | counts, throttle_reasons=st.none() | st.just(()), remapping_failed=st.booleans(),
    )  # fmt: skip
    return RankSnapshot(
        identity=identity,
        up=draw(st.booleans()),
        ended=draw(st.none() | names),
        exit_code=draw(st.none() | st.integers(-255, 255)),
        torch_version=draw(names),
        reports_admitted=draw(st.integers(0, 1)),
        slowdown_ratio=draw(ratios),
        step_ns_median=draw(ratios),
        stalled=draw(st.none() | st.booleans()),
        awaited=draw(st.booleans()),
        totals=Totals(
            steps=draw(counts), phases_ns=draw(st.dictionaries(names, counts, max_size=PHASE_NAMES_MAX)), windows=1
        ),
        losses=Losses(errors=draw(st.dictionaries(names, counts, max_size=3))),
        collectives=tuple(
            CollectiveTotals(group=group, op=op, count=count, duration_ns=count, bus_bandwidth_bytes_per_s=speed)
            for group, op, count, speed in kinds
        ),
        devices=tuple(draw(st.lists(devices, max_size=GPUS_PER_RANK_MAX))),
        host=draw(st.none() | st.builds(HostSample, host_ns=st.just(0), cpu_ns=counts, resident_bytes=counts)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw up to two runs of up to three ranks."""
    runs = tuple(
        RunSnapshot(
            run=run, world_size=3, restart_count=0, run_slowdown_ratio=draw(ratios),
            ranks=tuple(draw(ranks(run, rank)) for rank in range(draw(st.integers(0, 3)))),
        )
        for run in draw(st.lists(names.filter(bool), max_size=2, unique=True))
    )  # fmt: skip
    refused = draw(st.dictionaries(names, counts, max_size=2))
    return Snapshot(wall_s=0.0, version=draw(names), runs=runs, counts=CollectorCounts(frames_refused=refused))


def read(text: str, text_format: TextFormat) -> dict[Any, float]:
    """Return every sample by its name and labels. Fails if one is there twice."""
    samples = [sample for family in PARSERS[text_format](text) for sample in family.samples]
    by_labels = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(by_labels) == len(samples)
    return by_labels


def comments(text: str) -> list[str]:
    """Return the lines that are no samples."""
    return [line for line in text.split("\n") if line.startswith("# ")]


def page_of(snapshot: Snapshot, text_format: TextFormat) -> str:
    """Return the page with everything."""
    return b"".join(MetricPages().render(snapshot, Page(METRICS_PATH), text_format)).decode()


@pytest.mark.parametrize("text_format", TextFormat)
@given(snapshot=snapshots())
def test_the_page_says_what_the_library_s_writer_says(text_format: TextFormat, snapshot: Snapshot) -> None:
    ours, theirs = page_of(snapshot, text_format), render_by_library(snapshot, text_format)
    assert read(ours, text_format) == read(theirs, text_format)


@pytest.mark.parametrize("text_format", TextFormat)
def test_full_snapshot_has_the_librarys_samples_and_heads(text_format: TextFormat) -> None:
    ours, theirs = page_of(full_snapshot(), text_format), render_by_library(full_snapshot(), text_format)
    assert read(ours, text_format) == read(theirs, text_format)
    assert comments(ours) == comments(theirs)


@given(values=st.lists(st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats()))
def test_number_reads_back_equal_and_none_is_null(values: list[float | None]) -> None:
    texts = render_numbers(values)
    is_known = [value is not None and math.isfinite(value) for value in values]
    assert [text != b"null" for text in texts] == is_known
    read_back = [float(text) for text, known in zip(texts, is_known, strict=True) if known]
    assert read_back == [float(value or 0) for value, known in zip(values, is_known, strict=True) if known]


few_values = st.sampled_from([0, 0.0, 1, True, 2**60, 0.1, None, math.nan, math.inf])


@given(
    values=st.lists(few_values, max_size=6)
    | st.builds(lambda value, rows: [value] * rows, few_values, st.integers(0, 6))
)
def test_column_has_a_line_for_each_row_with_a_number(
    values: list[float | None],
) -> None:
    labels = [f'rank="{rank}"}} '.encode() for rank in range(len(values))]
    numbers = [render_numbers([value])[0] for value in values]
    rows = [b"up{" + label + number + b"\n" for label, number in zip(labels, numbers, strict=True) if number != b"null"]
    assert render_samples(b"up{", labels, values) == Lines(b"".join(rows), len(rows))


@given(snapshot=snapshots())
def test_a_page_is_the_same_whatever_was_rendered_before(snapshot: Snapshot) -> None:
    pages = MetricPages()
    classic = [b"".join(pages.render(each, Page(METRICS_PATH), TextFormat.CLASSIC)) for each in (snapshot,) * 2]
    assert all(first == second for first, second in pairwise(classic))
    other = with_runs(snapshot, tuple(reversed(snapshot.runs)))
    assert b"".join(pages.render(other, Page(METRICS_PATH), TextFormat.CLASSIC)).decode() == page_of(
        other, TextFormat.CLASSIC
    )
