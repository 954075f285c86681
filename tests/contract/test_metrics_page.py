"""The page of metrics as a contract: the golden page, the catalogue and promtool agree.

After a change that is wanted: `python -m tests.contract.test_metrics_page > tests/contract/golden/metrics.txt`, and
read the difference as an operator whose dashboards it breaks.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from rankscope.collector.publish.metrics.catalog import CATALOG, OF_PAGES
from rankscope.collector.publish.metrics.measures import (
    RANK,
    SERIES_PER_RANK_MAX,
    Measure,
    OfHistogram,
    OfOverview,
    OfPage,
    OfSnapshot,
)
from rankscope.collector.publish.metrics.pages import METRICS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.rank_columns import RankColumns
from rankscope.collector.publish.metrics.text_format import TextFormat
from tests.contract.metrics_table import read_table, render_table
from tests.full_snapshot import full_snapshot

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"
LABELS = {
    "call", "memory",
    "run", "rank", "node", "gpu", "group", "op", "phase", "cause", "reason", "part",
    "direction", "kind", "scope", "subject", "state", "page", "port", "interface", "communicator", "channel", "outcome",
    "stage", "schedule", "layer", "batch_job",
    "world_size", "restart_count", "run_id", "local_rank", "gpu_model", "pid", "agent_version", "torch_version",
    "slurm_job_id", "user", "k8s_namespace", "k8s_pod",
    "exit_code", "signal", "version",
}  # fmt: skip
"""Every label there may be; the last two lines are of the info measures only."""


def page(text_format: TextFormat = TextFormat.CLASSIC) -> str:
    """Return the page of the full snapshot."""
    return b"".join(MetricPages().render(full_snapshot(), Page(METRICS_PATH), text_format)).decode()


def samples(families: list[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample by its name and labels. Fails if one is there twice."""
    every = [sample for family in families for sample in family.samples]
    by_labels = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in every}
    assert len(by_labels) == len(every)
    return by_labels


def family_of(name: str) -> str:
    """The name of a measure by that of its sample: a histogram has three."""
    return re.sub("_(bucket|sum|count)$", "", name) if "_step_duration_seconds_" in name else name


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_the_golden_page() -> None:
    assert page() == GOLDEN.read_text()


def test_the_golden_page_shows_every_measure_of_the_catalogue() -> None:
    shown = {family_of(name) for name, _ in samples(list(parse_classic(GOLDEN.read_text())))}
    assert shown == {measure.name for measure in CATALOG}


def test_both_text_formats_say_the_same() -> None:
    classic = list(parse_classic(page()))
    modern = list(parse_openmetrics(page(TextFormat.OPENMETRICS)))  # type: ignore[no-untyped-call]
    assert samples(classic) == samples(modern)


def test_promtool_has_no_complaint() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.fail("promtool is not on PATH; it checks the page. Install it: apt-get install -y prometheus")
    checked = subprocess.run([promtool, "check", "metrics"], input=page(), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_unmeasured_rank_has_only_the_collectors_own_series() -> None:
    of_rank_2 = {name for name, labels in samples(list(parse_classic(page()))) if ("rank", "2") in labels}
    assert of_rank_2 == {"rankscope_rank_info", "rankscope_rank_up", "rankscope_report_gaps_total"}


def test_every_value_is_within_its_measure_s_valid_range() -> None:
    ranges = {measure.name: measure.valid_range for measure in CATALOG}
    for (name, labels), value in samples(list(parse_classic(page()))).items():
        smallest, largest = ranges[family_of(name)]
        assert smallest is None or value >= smallest, (name, labels)
        assert largest is None or value <= largest, (name, labels)


def test_the_reference_page_is_that_of_the_catalogue() -> None:
    assert read_table() == render_table()


# -- the catalogue ----------------------------------------------------------------------------------------------------


def test_every_measure_of_the_catalogue_has_a_reader() -> None:
    assert {type(measure.read) for measure in CATALOG} == {RankColumns, OfSnapshot, OfHistogram, OfOverview, OfPage}
    assert [measure.name for measure in CATALOG if isinstance(measure.read, OfPage)] == list(OF_PAGES)


def test_every_rank_has_series_of_the_measures_read_by_rank() -> None:
    assert [m.name for m in CATALOG if m.is_per_rank] == [m.name for m in CATALOG if isinstance(m.read, RankColumns)]


def test_rank_labels_are_bounded_or_about_few_ranks() -> None:
    by_rank = {measure.name: measure.labels for measure in CATALOG if measure.labels[:2] == RANK}
    about_few = {
        "rankscope_straggler",
        "rankscope_lost_gpu_seconds_total",
        "rankscope_rank_missing",
        "rankscope_slow_layer_ratio",
    }
    assert {name for name, labels in by_rank.items() if labels not in SERIES_PER_RANK_MAX} == about_few


def test_the_names_of_measures_are_all_different() -> None:
    assert len({measure.name for measure in CATALOG}) == len(CATALOG)


def test_no_two_families_have_one_name_in_openmetrics() -> None:
    # There a family is named without the ending: a counter `x_total` and a gauge `x` make the page unreadable.
    names = [re.sub("_(total|info)$", "", measure.name) for measure in CATALOG]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("measure", CATALOG, ids=lambda measure: measure.name)
def test_a_name_tells_the_kind_and_the_unit(measure: Measure) -> None:
    ending = {"counter": "_total", "info": "_info"}.get(measure.kind, "")
    assert re.fullmatch(rf"rankscope_[a-z_]+{ending}", measure.name)
    assert measure.kind == "counter" or not measure.name.endswith("_total")
    assert measure.name.removesuffix(ending).endswith(measure.unit)


@pytest.mark.parametrize("measure", CATALOG, ids=lambda measure: measure.name)
def test_labels_are_of_the_known_ones_and_never_the_scraper_s(measure: Measure) -> None:
    assert set(measure.labels) <= LABELS
    assert len(set(measure.labels)) == len(measure.labels)
    assert LABELS.isdisjoint({"job", "instance", "pod"})


if __name__ == "__main__":
    sys.stdout.write(page())
