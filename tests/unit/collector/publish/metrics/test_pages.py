"""The pages of metrics: which family stands on which, shards, and the bounds of both a page and a rank."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankscope.collector.publish.metrics import valid_values
from rankscope.collector.publish.metrics.catalog import (
    CATALOG,
    OF_PAGES,
    SERIES_DROPPED,
    SERIES_IMPOSSIBLE,
    SERIES_PER_RANK_MAX,
)
from rankscope.collector.publish.metrics.measures import COLLECTIVE_KINDS_MAX, GPUS_PER_RANK_MAX, PHASE_NAMES_MAX
from rankscope.collector.publish.metrics.node_metrics import OVERVIEW
from rankscope.collector.publish.metrics.pages import (
    BLOCK_RANKS,
    METRICS_PATH,
    RANKS_PATH,
    SHARDS_MAX,
    MetricPages,
    Page,
    PageError,
    Shard,
    parse_page,
)
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.publish.metrics.valid_values import find_outside
from rankscope.collector.runs.snapshot import SUMMARY_FIELDS, RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.records import AgentCost, Losses, Totals
from tests.full_snapshot import collectives_of, device_of, full_rank, full_snapshot
from tests.lazy_runs import LazyRun

METRICS, RANKS = Page(METRICS_PATH), Page(RANKS_PATH)
PER_RANK = {measure.name for measure in CATALOG if measure.is_per_rank}

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def rank_of(rank: int, run: str = "a", **known: object) -> RankSnapshot:
    """A rank of which everything is known."""
    full = full_rank(0)
    identity = msgspec.structs.replace(full.identity, run=run, rank=rank)
    return msgspec.structs.replace(full, identity=identity, **known)


def snapshot_of(ranks: int, *, run: str = "a") -> Snapshot:
    """A snapshot of one run of so many full ranks."""
    return snapshot_with(*(rank_of(rank, run) for rank in range(ranks)))


def snapshot_with(*ranks: RankSnapshot) -> Snapshot:
    """A snapshot of one run of these ranks."""
    run = RunSnapshot(run=ranks[0].identity.run, world_size=len(ranks), restart_count=0, ranks=ranks)
    return Snapshot(wall_s=0.0, version="0", runs=(run,))


def series_of(snapshot: Snapshot, page: Page, **bounds: int) -> Series:
    """The series of a page."""
    text = b"".join(MetricPages(**bounds).render(snapshot, page, TextFormat.CLASSIC)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def names_of(series: Series) -> set[str]:
    return {name for name, _ in series}


def ranks_of(series: Series) -> set[str]:
    """The ranks that have series of their own."""
    return {dict(labels)["rank"] for name, labels in series if name in PER_RANK}


def left_out(series: Series, page: Page = METRICS) -> float:
    return series[SERIES_DROPPED, (("page", page.name),)]


# -- which family is where --------------------------------------------------------------------------------------------


def test_small_run_is_all_on_metrics_and_not_on_the_rank_page() -> None:
    snapshot = snapshot_of(3)
    assert PER_RANK - {"rankscope_rank_end_info"} <= names_of(series_of(snapshot, METRICS, metrics_ranks_max=3))
    assert names_of(series_of(snapshot, RANKS, metrics_ranks_max=3)) == set(OF_PAGES)


def test_metrics_of_a_large_run_need_only_outlines_of_ranks() -> None:
    full = [rank_of(rank, ended=ended) for rank, ended in enumerate([None, None, "silent", "failed"])]
    outlines = [RankSnapshot(**{name: getattr(rank, name) for name in SUMMARY_FIELDS}) for rank in full]
    found, expected = (series_of(snapshot_with(*ranks), METRICS, metrics_ranks_max=3) for ranks in (outlines, full))
    assert found == expected
    assert names_of(found) >= {measure.name for measure in OVERVIEW}
    assert len(found) > len(CATALOG) - len(PER_RANK) - 40


def test_the_pictures_of_a_small_run_are_made_once_for_its_page() -> None:
    (picture,) = snapshot_with(*(full_rank(rank) for rank in range(3))).runs
    lazy = LazyRun(lambda: picture, run=picture.run, size=3)
    found = series_of(Snapshot(wall_s=0.0, version="0", runs=[lazy]), METRICS)
    assert ranks_of(found) == {"0", "1", "2"}
    assert lazy.made == 1


def test_page_of_many_ranks_has_each_once_or_no_such_family() -> None:
    """Of more ranks than are written at a time."""
    ranks = 2 * BLOCK_RANKS + 3
    everybody = [str(rank) for rank in range(ranks)]
    found = series_of(snapshot_of(ranks), RANKS, series_max=3 * ranks)
    for family in ("rankscope_rank_info", "rankscope_rank_up"):
        assert [dict(labels)["rank"] for name, labels in found if name == family] == everybody
    for family in names_of(found) & PER_RANK:
        assert len(ranks_of({key: value for key, value in found.items() if key[0] == family})) == ranks
    assert len(found) <= 3 * ranks + len(OF_PAGES)
    assert left_out(found, RANKS) > 0


def test_rank_families_of_a_large_run_are_on_their_page_alone() -> None:
    snapshot = snapshot_of(4)
    on_metrics, on_ranks = (series_of(snapshot, page, metrics_ranks_max=3) for page in (METRICS, RANKS))
    assert names_of(on_metrics).isdisjoint(PER_RANK)
    assert {"rankscope_run_info", "rankscope_node_ranks", "rankscope_worst_rank_slowdown_ratio"} <= names_of(on_metrics)
    assert names_of(on_ranks) <= PER_RANK | set(OF_PAGES)
    assert on_metrics.keys().isdisjoint(on_ranks)


def test_both_pages_of_a_large_run_equal_the_one_of_a_small_run() -> None:
    snapshot = full_snapshot()
    together = series_of(snapshot, METRICS, metrics_ranks_max=0) | series_of(snapshot, RANKS, metrics_ranks_max=0)
    of_page = {(name, (("page", RANKS.name),)): 0.0 for name in OF_PAGES}
    assert together == series_of(snapshot, METRICS) | of_page


def test_ranks_yet_to_join_count_so_that_nothing_moves() -> None:
    run = msgspec.structs.replace(snapshot_of(2).runs[0], world_size=100)
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(run,))
    assert ranks_of(series_of(snapshot, METRICS)) == set()
    assert ranks_of(series_of(snapshot, RANKS)) == {"0", "1"}


def test_an_empty_collector_shows_itself() -> None:
    shown = series_of(Snapshot(wall_s=0.0, version="0"), METRICS)
    assert {"rankscope_frames_received_total", "rankscope_runs_evicted_total", SERIES_DROPPED} <= names_of(shown)


# -- shards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3, 7, 64])
def test_every_rank_is_in_exactly_one_shard(parts: int) -> None:
    snapshot = snapshot_of(20)
    shards = [Page(RANKS_PATH, Shard(part, parts)) for part in range(parts)]
    found = [ranks_of(series_of(snapshot, shard, metrics_ranks_max=0)) for shard in shards]
    assert sorted(rank for ranks in found for rank in ranks) == sorted(map(str, range(20)))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_a_rank_stays_in_its_shard_whoever_else_joins() -> None:
    shard = Page(RANKS_PATH, Shard(1, 4))
    few, many = (ranks_of(series_of(snapshot_of(count), shard, metrics_ranks_max=0)) for count in (8, 16))
    assert few == {rank for rank in many if int(rank) < 8}


def test_the_shards_have_together_what_the_whole_page_has() -> None:
    snapshot = snapshot_of(10)
    shards = [Page(RANKS_PATH, Shard(part, 3)) for part in range(3)]
    together: Series = {}
    for shard in shards:
        together |= series_of(snapshot, shard, metrics_ranks_max=0)
    whole = series_of(snapshot, RANKS, metrics_ranks_max=0)
    assert {key: value for key, value in together.items() if key[0] not in OF_PAGES} == {
        key: value for key, value in whole.items() if key[0] not in OF_PAGES
    }
    assert sum(name == SERIES_DROPPED for name, _ in together) == 3


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("", RANKS),
        ("shard=0/1", Page(RANKS_PATH, Shard(0, 1))),
        ("shard=3%2F4", Page(RANKS_PATH, Shard(3, 4))),
        (f"shard=255/{SHARDS_MAX}", Page(RANKS_PATH, Shard(255, SHARDS_MAX))),
    ],
)
def test_a_shard_is_read_from_the_query(query: str, page: Page) -> None:
    assert parse_page(RANKS_PATH, query) == page


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "4/4",
        "-1/4",
        "0/0",
        "a/b",
        "1/4/2",
        "0/257",
        "0/9999999",
        "\u0661/\u0664",
        " 0/4",
        "0/4 ",
        "0x0/4",
        "/",
    ],
)
def test_a_shard_that_is_none_is_refused_with_what_may_be_asked(text: str) -> None:
    with pytest.raises(PageError) as raised:
        parse_page(RANKS_PATH, f"shard={text}")
    assert str(raised.value) == (
        f"shard is {text!r}; it must be one I/N, the part I of N parts of the ranks: I from 0 to N-1, N from 1 to 256, "
        "as in ?shard=0/4"
    )


def test_two_shards_are_refused() -> None:
    with pytest.raises(PageError, match="shard is '0/2 and 1/2'; it must be one I/N"):
        parse_page(RANKS_PATH, "shard=0/2&shard=1/2")


def test_unknown_parameter_is_refused_lest_a_shard_be_everything() -> None:
    with pytest.raises(PageError, match="'shards' is no parameter of /metrics/ranks; use shard, as in"):
        parse_page(RANKS_PATH, "shards=0/4")


def test_metrics_have_no_parameters_and_mind_none() -> None:
    assert parse_page(METRICS_PATH, "from=somewhere&shard=x") == METRICS


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_family_that_does_not_fit_is_left_out_whole_and_counted() -> None:
    # 1 run_info and 3 rank_infos are four series; of rank_up there is no room for three more.
    snapshot = snapshot_of(3)
    whole, bounded = series_of(snapshot, METRICS), series_of(snapshot, METRICS, series_max=6)
    assert {"rankscope_run_info", "rankscope_rank_info"} <= names_of(bounded)
    assert "rankscope_rank_up" not in names_of(bounded)
    assert left_out(whole) == 0
    # The series that tells of it is on both pages.
    assert left_out(bounded) == len(whole) - len(bounded)
    assert len(bounded) - len(OF_PAGES) <= 6


def test_a_smaller_family_after_one_that_does_not_fit_is_shown() -> None:
    bounded = series_of(snapshot_of(3), METRICS, series_max=6)
    assert "rankscope_run_slowdown_ratio" not in names_of(bounded)  # unknown here
    assert "rankscope_rank_up" not in names_of(bounded)  # one of each rank
    assert "rankscope_run_energy_joules_total" in names_of(bounded)


def test_a_page_of_no_room_at_all_still_says_what_it_lacks() -> None:
    nothing = series_of(snapshot_of(1), METRICS, series_max=0)
    assert names_of(nothing) == set(OF_PAGES)
    assert left_out(nothing) == len(series_of(snapshot_of(1), METRICS)) - len(OF_PAGES)


def hostile_rank() -> RankSnapshot:
    """A rank with more of everything than there may be."""
    many = {f"name-{number}": number for number in range(200)}
    devices = tuple(msgspec.structs.replace(device_of(0), uuid=f"GPU-{number}") for number in range(20))
    kinds = tuple(
        CollectiveTotals(
            group=f"group-{number}", op="all_reduce", count=1, duration_ns=1, bytes=1, matched=1, wait_ns=1,
            transfer_ns=1, bus_bandwidth_bytes_per_s=1.0,
        )
        for number in range(100)
    )  # fmt: skip
    full = full_rank(0)
    return rank_of(
        0,
        totals=msgspec.structs.replace(full.totals, phases_ns=many, device_phases_ns=many),
        losses=msgspec.structs.replace(full.losses, errors=many, device_timings_skipped=many),
        cost=AgentCost(
            part_ns=many, dropped=dict.fromkeys(many, False), full_stretch_ratio=1.0, light_stretch_ratio=1.0
        ),
        devices=devices,
        collectives=kinds,
    )


def test_series_of_a_rank_are_bounded_and_the_excess_is_counted() -> None:
    shown = series_of(snapshot_with(hostile_rank()), METRICS)
    of_rank = [key for key in shown if key[0] in PER_RANK]
    assert len(of_rank) <= SERIES_PER_RANK_MAX
    # 2 families of phases with 200 names, 3 of parts, 1 of reasons; 6 of 100 kinds of collective; 20 GPUs.
    by_name = {name: sum(key[0] == name for key in of_rank) for name in PER_RANK}
    assert by_name["rankscope_step_phase_seconds_total"] == PHASE_NAMES_MAX
    assert by_name["rankscope_collectives_total"] == COLLECTIVE_KINDS_MAX
    assert by_name["rankscope_gpu_power_watts"] == GPUS_PER_RANK_MAX
    assert by_name["rankscope_gpu_nvlink_bytes_total"] == 2 * GPUS_PER_RANK_MAX
    devices = 12 * (20 + 2 * 5)
    assert left_out(shown) == 2 * (200 - 32) + 3 * (200 - 32) + (200 - 8) + 6 * (100 - 64) + devices


def test_a_rank_with_everything_on_has_about_a_hundred_series() -> None:
    # One GPU, two kinds of collective, five phases; of a port 13 and of an interface 2. docs/metrics.md states it.
    shown = series_of(snapshot_of(1), METRICS)
    assert sum(key[0] in PER_RANK for key in shown) == 138 + 13 + 2


def test_node_has_18_series_on_metrics_with_any_number_of_ranks() -> None:
    # docs/metrics.md states it.
    few, many = (series_of(snapshot_of(ranks), METRICS, metrics_ranks_max=0) for ranks in (2, 8))
    of_node = [[name for name, labels in shown if dict(labels).keys() == {"run", "node"}] for shown in (few, many)]
    assert [len(names) for names in of_node] == [18, 18]


def test_excess_of_one_rank_costs_no_other_rank_anything() -> None:
    other = rank_of(1, totals=Totals(steps=1, phases_ns={"data": 1}), losses=Losses(), collectives=collectives_of(1))
    shown = series_of(snapshot_with(hostile_rank(), other), METRICS)
    alone = series_of(snapshot_with(other), METRICS)
    of_other = {key for key in alone if key[0] in PER_RANK}
    assert of_other <= shown.keys()


# -- values that cannot be --------------------------------------------------------------------------------------------


def with_idle_ratio(rank: int, window_ns: int, idle_ns: int) -> RankSnapshot:
    """A full rank whose last windows were idle for so long."""
    breakdown = full_rank(0).breakdown
    assert breakdown is not None
    return rank_of(rank, breakdown=msgspec.structs.replace(breakdown, window_ns=window_ns, idle_ns=idle_ns))


def impossible(series: Series, page: Page = METRICS) -> float:
    return series[SERIES_IMPOSSIBLE, (("page", page.name),)]


def test_value_outside_its_metric_s_range_is_absent_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    valid_values._LOGGED.clear()
    ranks = (with_idle_ratio(0, 100, 20), with_idle_ratio(1, 100, 125), rank_of(2, slowdown_ratio=-0.5))
    series = series_of(snapshot_with(*ranks), METRICS)
    idle = {dict(labels)["rank"]: value for (name, labels), value in series.items() if name == "rankscope_idle_ratio"}
    assert (idle["0"], "1" in idle, "2" in idle) == (0.2, False, True)
    assert not any(name == "rankscope_slowdown_ratio" and ("rank", "2") in labels for name, labels in series)
    assert impossible(series) >= 2
    assert "rankscope_idle_ratio cannot be 1.25 ({'run': 'a', 'rank': '1'}; its range is 0 to 1)" in caplog.text


def test_first_impossible_value_of_a_metric_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    valid_values._LOGGED.clear()
    snapshot = snapshot_with(with_idle_ratio(0, 100, 125), with_idle_ratio(1, 100, 150))
    for page in (METRICS, METRICS):
        assert impossible(series_of(snapshot, page)) >= 2
    (message,) = [one.message for one in caplog.records if "rankscope_idle_ratio" in one.message]
    assert "{'run': 'a', 'rank': '0'}" in message


def test_last_digits_of_a_float_make_no_share_impossible() -> None:
    assert find_outside([1 + 1e-12, -1e-12], (0, 1)) == []
    assert find_outside([1 + 1e-6, -1e-6, float("inf")], (0, 1)) == [0, 1]
