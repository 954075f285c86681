"""The dashboards are what their generator writes, ask only for what there is, and fit together.

After a change that is wanted: `python -m deploy.grafana.generator`.
"""

import copy
import functools
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from rankscope.collector.config import CollectorConfig
from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.node_metrics import OVERVIEW
from tests.contract.dashboard_queries import (
    DASHBOARDS,
    Asked,
    find_annotations,
    find_dashboards,
    find_groups,
    find_panels,
    find_queries,
    find_variables,
    read_dashboard,
)
from tests.contract.promql_names import Labels, find_catalog_labels, find_labels, find_series_of, find_uses

GRAFANA = DASHBOARDS.parent
ROOT = Path(__file__).parents[2]
LIVE_PAGE = "${collector}/#"
"""Begin of links to the page of the collector whose address is in that field."""
GRID_COLUMNS = 24
OF_GRAFANA = {"__rate_interval": "1m", "__range": "1h"}
"""Variables that Grafana sets itself, in expressions."""
WITHOUT_UNIT = {"heatmap", "state-timeline", "table"}
"""Kinds of panel whose numbers are counts and states, or whose unit is given by column."""

OF_MACHINES = ("rankscope_node_tcp_", "rankscope_node_cpu_", "rankscope_node_group_", "rankscope_node_memory_")
"""Metrics of nodes that are no summary of their ranks."""

NOT_SHOWN = {
    # The account of step records, which docs/delivery.md explains together: what is lost of it is shown.
    "rankscope_step_records_created_total", "rankscope_step_records_published_total",
    "rankscope_step_records_acked_by_previous_collector_total", "rankscope_step_records_buffered",
    # Sums of others that are shown: compute and communication by what overlaps, collectives by waiting and transfer.
    "rankscope_compute_ratio", "rankscope_communication_ratio", "rankscope_collective_seconds_total",
    # Its phases are shown, each.
    "rankscope_device_step_seconds_total",
    # The reason is in the API only; the ranks without peers are shown.
    "rankscope_finding_not_judged",
    # Its slope, the power, is shown, and the sum of the run.
    "rankscope_gpu_energy_joules_total",
    # The first of them are in a table.
    "rankscope_nodes_held_up",
    # Each is logged with what it was made of, and harms nobody: what is left out is absent where it would stand.
    "rankscope_impossible_numbers_total", "rankscope_series_impossible",
    # A pause of a collector is in its log, and what it missed is time that was not reported, which is shown.
    "rankscope_collector_absent_seconds_total",
    # The current drops are shown.
    "rankscope_agent_part_changes_total",
    # Of the way to a dashboard: while pushes fail, nothing new is shown that came by them; the log says it.
    "rankscope_otlp_pushes_total", "rankscope_otlp_push_success_timestamp_seconds",
    # Dashboards show the families of ranks for whole runs, nodes and the worst ranks; these are for alerts, and for
    # servers that keep no series of every rank.
    *(measure.name for measure in OVERVIEW if not measure.name.startswith(OF_MACHINES)),
}  # fmt: skip
"""Measures without a panel."""

needs_library = pytest.mark.skipif(sys.version_info < (3, 11), reason="the library that writes them needs Python 3.11")
# It warns of the form of dashboards that every Grafana reads, because there is a newer one that only new ones do.
reads_old_form = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
each_dashboard = pytest.mark.parametrize("name", find_dashboards())

EVERYTHING_ASKED = [
    asked
    for name in find_dashboards()
    for asked in (
        *find_queries(name),
        *find_annotations(name),
        *(Asked(name, f"${variable}", 0, series) for variable, series, _ in find_variables(name)),
    )
]


@functools.cache
def find_known() -> dict[str, Labels]:
    """Return the labels of all measures, and of the results of the recording rules."""
    known = find_catalog_labels()
    for rule in read_rules("recording"):
        known[rule["record"]] = find_labels(rule["expr"], known)
    return known


def read_rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a file of deploy/prometheus."""
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules" / f"{name}.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def fill(expr: str) -> str:
    """Return the expression with something for each variable."""
    return re.sub(r"\$(\w+)", lambda found: OF_GRAFANA.get(found[1], "any"), expr)


def links_of(panel: dict[str, Any]) -> Iterator[str]:
    """Yield the addresses that links in a panel's values open."""
    of_all = panel["fieldConfig"]["defaults"].get("links", [])
    properties = [each for override in panel["fieldConfig"]["overrides"] for each in override["properties"]]
    of_some = itertools.chain.from_iterable(each["value"] for each in properties if each["id"] == "links")
    return (link["url"] for link in (*of_all, *of_some))


# -- what they are written by -----------------------------------------------------------------------------------------


@needs_library
@reads_old_form
def test_the_dashboards_are_what_the_generator_writes() -> None:
    from deploy.grafana.generator.pages import render_all  # noqa: PLC0415 - see needs_library

    assert {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.iterdir()} == render_all()


@needs_library
@reads_old_form
@each_dashboard
def test_the_types_of_grafana_know_every_field_of_a_dashboard(name: str) -> None:
    assert find_unknown(read_dashboard(name), read_and_write(read_dashboard(name))) == []


@needs_library
@reads_old_form
def test_a_field_that_grafana_does_not_know_is_noticed() -> None:
    page = copy.deepcopy(read_dashboard("run"))
    page["panels"][2]["fieldConfig"]["defaults"]["uint"] = "s"
    assert find_unknown(page, read_and_write(page)) == ["panels.2.fieldConfig.defaults.uint"]


def read_and_write(page: dict[str, Any]) -> Any:
    """Return the dashboard after the library, whose types are made from Grafana's, has read and written it."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415 - see needs_library
    from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: PLC0415
    from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(page)))


def find_unknown(ours: Any, known: Any, at: tuple[str, ...] = ()) -> list[str]:
    """Return the places where the two documents differ."""
    if isinstance(ours, dict) and isinstance(known, dict):
        pairs = ((key, value, known.get(key)) for key, value in ours.items())
    elif isinstance(ours, list) and isinstance(known, list) and len(ours) == len(known):
        pairs = ((str(place), *both) for place, both in enumerate(zip(ours, known, strict=True)))
    else:
        return [] if ours == known else [".".join(at)]
    return [found for key, ours, theirs in pairs for found in find_unknown(ours, theirs, (*at, key))]


# -- what they ask ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", EVERYTHING_ASKED, ids=str)
def test_every_name_and_label_is_in_the_catalogue(asked: Asked) -> None:
    assert set(asked.labels) <= find_labels(fill(asked.expr), find_known())


def test_every_measure_stands_on_a_dashboard() -> None:
    shown = {name for asked in EVERYTHING_ASKED for name in find_uses(fill(asked.expr))}
    for rule in reversed(read_rules("recording")):
        shown |= set(find_uses(rule["expr"])) if rule["record"] in shown else set()
    hidden = {one.name for one in CATALOG if shown.isdisjoint({part.name for part in find_series_of(one)})}
    assert hidden == NOT_SHOWN


@each_dashboard
def test_every_variable_that_is_used_is_there_to_be_chosen(name: str) -> None:
    offered = {variable["name"] for variable in read_dashboard(name)["templating"]["list"]}
    asked = [one.expr for one in EVERYTHING_ASKED if one.dashboard == name]
    used = {variable for expr in asked for variable in re.findall(r"\$(\w+)", expr)}
    assert used - set(OF_GRAFANA) == offered - {"datasource", "collector"}


@each_dashboard
def test_everything_is_asked_of_the_chosen_prometheus(name: str) -> None:
    page = read_dashboard(name)
    asking = [*find_panels(name), *page["annotations"].get("list", [])]
    asking += [target for panel in find_panels(name) for target in panel["targets"]]
    assert {each["datasource"]["uid"] for each in asking} == {"${datasource}"}


@each_dashboard
def test_every_query_is_of_the_chosen_cluster(name: str) -> None:
    for asked in EVERYTHING_ASKED:
        if asked.dashboard == name and asked.title != "$cluster":
            metrics = re.findall(r"rankscope_\w+", asked.expr)
            assert asked.expr.count('cluster=~"$cluster"') == len(metrics) > 0, asked


def test_all_clusters_and_collectors_include_unlabeled_ones() -> None:
    for name in find_dashboards():
        variables = {each["name"]: each for each in read_dashboard(name)["templating"]["list"]}
        assert ("instance" in variables) == (name == "fleet")
        for variable in (variables[each] for each in ("cluster", "instance") if each in variables):
            assert (variable["includeAll"], variable["allValue"]) == (True, ".*")
            assert variable["current"]["value"] == "$__all"


def test_health_of_collectors_is_that_of_the_chosen_ones() -> None:
    rows = {row["title"]: row["panels"] for row in read_dashboard("fleet")["panels"] if row["type"] == "row"}
    for title in ("The monitor itself", "Collectors and relays"):
        for target in (target for panel in rows[title] for target in panel["targets"]):
            assert target["expr"].count('instance=~"$instance"') == len(re.findall(r"rankscope_\w+", target["expr"]))


# -- their layout ----------------------------------------------------------------------------------------------------


@each_dashboard
def test_every_panel_says_what_it_shows_and_in_which_unit(name: str) -> None:
    for panel in find_panels(name):
        assert panel["title"]
        assert re.fullmatch(r"[A-Z1].*\.", panel["description"]), panel["title"]
        has_unit = "unit" in panel["fieldConfig"]["defaults"]
        assert has_unit or panel["type"] in WITHOUT_UNIT or panel["options"]["textMode"] == "name", panel["title"]


@each_dashboard
def test_panels_lie_beside_each_other_on_the_grid(name: str) -> None:
    for group in find_groups(name):
        taken: dict[tuple[int, int], str] = {}
        for panel in group:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= GRID_COLUMNS
            columns = range(place["x"], place["x"] + place["w"])
            for cell in itertools.product(columns, range(place["y"], place["y"] + place["h"])):
                assert cell not in taken, (panel["title"], taken[cell])
                taken[cell] = panel["title"]


@each_dashboard
def test_every_panel_has_a_number_of_its_own(name: str) -> None:
    numbers = [panel["id"] for group in find_groups(name) for panel in group]
    assert len(set(numbers)) == len(numbers)


@each_dashboard
def test_page_begins_with_help_and_ends_with_closed_rows(name: str) -> None:
    on_page = read_dashboard(name)["panels"]
    help_text, first, *_ = on_page
    assert (help_text["type"], help_text["options"]["mode"], help_text["gridPos"]["y"]) == ("text", "markdown", 0)
    assert help_text["options"]["content"].startswith("**")
    rows = [panel for panel in on_page if panel["type"] == "row"]
    assert first is rows[0]
    closed = [row.get("collapsed", False) for row in rows]
    assert (closed[:2], closed[-1]) == ([False, False], True)
    assert closed == sorted(closed), "open ones first"
    for row in rows:
        below = [panel["gridPos"]["y"] for panel in row["panels"]]
        assert bool(below) == row["collapsed"]
        assert all(y > row["gridPos"]["y"] for y in below)


@each_dashboard
def test_link_to_the_live_page_has_what_is_chosen(name: str) -> None:
    page = read_dashboard(name)
    (link,) = [link for link in page["links"] if link["type"] == "link"]
    shown = {"fleet": "", "rank": "#run=${run:percentencode}&rank=${rank:percentencode}"}
    assert link["url"] == "${collector}/" + shown.get(name, "#run=${run:percentencode}")
    (address,) = [each for each in page["templating"]["list"] if each["name"] == "collector"]
    assert address["type"] == "textbox"
    assert address["query"] == f"http://{CollectorConfig().http_listen}"


def test_runs_and_ranks_in_tables_link_to_their_live_page() -> None:
    pages = {
        name: {url for panel in find_panels(name) for url in links_of(panel) if url.startswith(LIVE_PAGE)}
        for name in ("fleet", "run")
    }
    run, rank = "${__data.fields.Run:percentencode}", "${__data.fields.Rank:percentencode}"
    assert pages == {
        "fleet": {f"{LIVE_PAGE}run={run}", f"{LIVE_PAGE}run={run}&rank={rank}"},
        "run": {f"{LIVE_PAGE}run=${{run:percentencode}}&rank={rank}"},
    }


def test_live_page_reads_the_address_of_that_link() -> None:
    script = (ROOT / "collector" / "publish" / "live_page" / "page.js").read_text()
    reads = script.partition("const readAddress")[2].partition("};")[0]
    assert "URLSearchParams(location.hash.slice(1))" in reads
    assert {'wanted.get("run")', 'wanted.get("rank")'} <= set(re.findall(r'wanted\.get\("\w+"\)', reads))


# -- how they fit together --------------------------------------------------------------------------------------------


def test_links_open_dashboards_that_have_their_variables() -> None:
    pages = [read_dashboard(name) for name in find_dashboards()]
    variables = {page["uid"]: {each["name"] for each in page["templating"]["list"]} for page in pages}
    led_to = set()
    for url in (url for name in find_dashboards() for panel in find_panels(name) for url in links_of(panel)):
        if url.startswith(LIVE_PAGE):
            continue
        found = re.match(r"/d/([\w-]+)\?", url)
        assert found is not None
        assert set(re.findall(r"var-(\w+)=", url)) <= variables[found[1]], url
        led_to.add(found[1])
    # Everything is reachable from the fleet.
    assert led_to == set(variables) - {"rankscope-fleet"}


@each_dashboard
def test_link_values_come_from_existing_columns_and_labels(name: str) -> None:
    offered = {variable["name"] for variable in read_dashboard(name)["templating"]["list"]}
    for panel in find_panels(name):
        columns = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
        for url in links_of(panel):
            values = re.findall(r"=\$\{([\w.]+):percentencode\}", url)
            assert len(values) == (url.count("=") if url.startswith(LIVE_PAGE) else url.count("var-"))
            assert {value.removeprefix("__data.fields.") for value in values if "__data" in value} <= columns
            labels = {value.removeprefix("__field.labels.") for value in values if "__field" in value}
            # Lines for comparison, such as a limit, have no link; the first query is the subject of the panel.
            assert labels <= find_labels(fill(panel["targets"][0]["expr"]), find_known()), panel["title"]
            assert {value for value in values if not value.startswith("__")} <= offered


@needs_library
@reads_old_form
def test_where_an_alert_has_a_limit_the_dashboards_have_the_same() -> None:
    from deploy.grafana.generator.thresholds import OF_ALERTS  # noqa: PLC0415 - see needs_library

    of_alerts = {rule["alert"]: find_limits(rule["expr"]) for rule in read_rules("alerts")}
    assert {name: limits for name, limits in of_alerts.items() if limits} == OF_ALERTS


def find_limits(expr: str) -> tuple[float, ...]:
    """Return the numbers that something is compared with, but 0 and 1: these ask whether there is anything."""
    compared = (float(number) for number in re.findall(r"[<>]=?\s*([\d.]+)", expr))
    return tuple(number for number in compared if number not in {0, 1})


def test_every_dashboard_is_found_by_the_others() -> None:
    pages = [read_dashboard(name) for name in find_dashboards()]
    assert len({page["uid"] for page in pages}) == len(pages) == 4
    assert all(
        page["tags"] == [tag] for page in pages for link in page["links"] for tag in link["tags"] or page["tags"]
    )


# -- provisioning -----------------------------------------------------------------------------------------------------


def test_data_source_interval_is_prometheus_scrape_interval() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "rankscope.yml").read_text())["datasources"]
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]


def test_the_provider_reads_files_and_lets_nobody_change_them() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "rankscope.yml").read_text())["providers"]
    assert (provider["type"], provider["allowUiUpdates"], provider["disableDeletion"]) == ("file", False, True)


def test_compose_mounts_dashboards_and_has_their_prometheus() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "rankscope.yml").read_text())["providers"]
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "rankscope.yml").read_text())["datasources"]
    services = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text())["services"]
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert mounted["../grafana/dashboards"] == provider["options"]["path"]
    assert urlsplit(source["url"]).hostname in services
