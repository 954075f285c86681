"""Names, variables, links and the grid that all dashboards share."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from grafana_foundation_sdk.builders import text
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    TextBoxVariable,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import AnnotationQuery as AnnotationQueryModel
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    FieldConfig,
    FieldConfigSource,
    GridPos,
    Panel,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.dashboard import DashboardLink as DashboardLinkModel
from grafana_foundation_sdk.models.prometheus import Dataquery as PrometheusQuery
from grafana_foundation_sdk.models.text import TextMode

DATA_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source chosen at the top of the page, so that the dashboards fit any Grafana with a Prometheus."""
TAG: Final = "rankscope"
"""Tag by which the dashboards link to each other."""
FLEET, RUN, RANK, NODE = "rankscope-fleet", "rankscope-run", "rankscope-rank", "rankscope-node"
"""Uids of the dashboards; their addresses are /d/UID."""

COLLECTOR_URL: Final = "http://127.0.0.1:18491"
"""The collector's HTTP server as a browser reaches it, until another one is entered at the top of the page."""

OF_CLUSTER: Final = 'cluster=~"$cluster"'
"""Selects the series of the chosen cluster, in every query of every dashboard; all of them where none has the label."""
OF_COLLECTOR: Final = 'instance=~"$instance"'
"""Selects the series of the chosen collectors."""

LIVE_RUN: Final = "#run=${run:percentencode}"
"""Address of the chosen run on the live page."""

GRID_COLUMNS: Final = 24
"""The width of a page in Grafana's units."""

OF_RUN: Final = 'run="$run"'
"""Selects the series of the chosen run."""
OF_RANK: Final = 'run="$run",rank="$rank"'
OF_NODE: Final = 'run="$run",node="$node",rank=~"$rank"'


METRIC: Final = re.compile(r"\b((?:\w+:)?rankscope_\w+(?::\w+)?)(\{)?")
"""Name of a metric or of a recorded series in an expression, and the brace of its matchers, if it has some."""

T = TypeVar("T")


class Placed(NamedTuple):
    """A panel and its size on the grid."""

    panel: Builder[Panel]
    width: int
    height: int


class Built(Builder[T]):
    """A finished part, where the library expects a builder."""

    def __init__(self, part: T) -> None:
        self._part = part

    def build(self) -> T:
        """Return the part itself."""
        return self._part


Link = Built[DashboardLinkModel]
"""A link to another dashboard, or to all."""


def dashboard(uid: str, title: str, description: str, *variables: QueryVariable, live: str = "") -> Dashboard:
    """Return a dashboard without panels: the data source and these variables to choose, and links to the others and to
    the live page, where `live` is what it shows there, for example `#run=...`.
    """
    others = (
        DashboardLink("rankscope")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )
    page = (
        Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(_outside_menu(others))
        .link(_outside_menu(_link_to_live_page(live)))
        .with_variable(_without_foreign_fields(DatasourceVariable("datasource").label("Prometheus").type("prometheus")))
    )
    for variable in (cluster_variable(), *variables):
        page.with_variable(_without_foreign_fields(variable))
    address = TextBoxVariable("collector").label("Collector").default_value(COLLECTOR_URL)
    page.with_variable(_without_foreign_fields(address))
    return page


def select(expr: str, matcher: str) -> str:
    """Return an expression with a matcher added to every metric in it.

    >>> select('sum(rankscope_ranks{state="silent"}) / count(run:rankscope_gpus:count)', 'cluster="a"')
    'sum(rankscope_ranks{cluster="a",state="silent"}) / count(run:rankscope_gpus:count{cluster="a"})'
    """
    return METRIC.sub(lambda found: f"{found[1]}{{{matcher}{',' if found[2] else '}'}", expr)


def select_in(panels: Iterable[Placed], matcher: str) -> list[Placed]:
    """Return the panels with a matcher added to every metric that they query."""
    return [Placed(Built(_select_in(placed.panel.build(), matcher)), *placed[1:]) for placed in panels]


def _select_in(panel: Panel, matcher: str) -> Panel:
    for target in cast("Sequence[PrometheusQuery]", panel.targets or ()):
        target.expr = select(target.expr, matcher)
    return panel


def _link_to_live_page(shown: str) -> DashboardLink:
    return (
        DashboardLink("Live page and captures")
        .type(DashboardLinkType.LINK)
        .icon("external link")
        .url("${collector}/" + shown)
        .target_blank(target_blank=True)
        .tooltip("The address is that of Collector at the top of the page")
    )


def _outside_menu(link: DashboardLink) -> Link:
    """Return the link outside the menu, into which the library puts every link."""
    built = link.build()
    built.placement = None  # type: ignore[assignment] # it may be None, and then is not written
    return Built(built)


def _without_foreign_fields(variable: Builder[VariableModel]) -> Built[VariableModel]:
    """Return the variable without the fields of intervals and of newer releases, which the library always writes."""
    built = variable.build()
    built.auto = built.auto_count = built.auto_min = built.allow_custom_value = None
    return Built(built)


def cluster_variable() -> QueryVariable:
    """Return the variable for one cluster or all. All also matches series without the label, which most have not."""
    found = _variable("cluster", "label_values(rankscope_run_info, cluster)", VariableSort.ALPHABETICAL_ASC)
    return found.include_all(include_all=True).all_value(".*").current(_ALL)


def instance_variable() -> QueryVariable:
    """Return the variable for some or all collectors."""
    query = f"label_values(rankscope_collector_info{{{OF_CLUSTER}}}, instance)"
    found = _variable("instance", query, VariableSort.ALPHABETICAL_ASC)
    return found.multi(multi=True).include_all(include_all=True).all_value(".*").current(_ALL)


_ALL: Final = VariableOption(text="All", value="$__all")


def run_variable() -> QueryVariable:
    """Return the variable for one run."""
    return _variable("run", f"label_values(rankscope_run_info{{{OF_CLUSTER}}}, run)", VariableSort.ALPHABETICAL_ASC)


def node_variable() -> QueryVariable:
    """Return the variable for one node of the run."""
    query = f"label_values(rankscope_rank_info{{{OF_CLUSTER},{OF_RUN}}}, node)"
    return _variable("node", query, VariableSort.NATURAL_ASC)


def rank_variable() -> QueryVariable:
    """Return the variable for one rank of the run."""
    return _variable(
        "rank", f"label_values(rankscope_rank_info{{{OF_CLUSTER},{OF_RUN}}}, rank)", VariableSort.NUMERICAL_ASC
    )


def ranks_of_node_variable() -> QueryVariable:
    """Return the variable for some or all ranks of the node. All is one expression, not a list of names."""
    query = f'label_values(rankscope_rank_info{{{OF_CLUSTER},{OF_RUN},node="$node"}}, rank)'
    found = _variable("rank", query, VariableSort.NUMERICAL_ASC)
    return found.multi(multi=True).include_all(include_all=True).all_value(".+")


def _variable(name: str, query: str, sort: VariableSort) -> QueryVariable:
    # The form that Grafana's editor writes; qryType 1 is a query of label values.
    asked: dict[str, object] = {"query": query, "qryType": 1, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    return (
        QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATA_SOURCE)
        .query(asked)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
    )


def annotation(name: str, expr: str, *, title: str, text: str, color: str) -> Built[AnnotationQueryModel]:
    """Return a band over every graph while the expression has a series; its labels fill `title` and `text`."""
    target = Dataquery().expr(select(expr, OF_CLUSTER)).range().ref_id("Anno").datasource(DATA_SOURCE)
    found = (
        AnnotationQuery()
        .name(name)
        .datasource(DATA_SOURCE)
        .enable(enable=True)
        .icon_color(color)
        .target(target)
        .title_format(title)
        .text_format(text)
        .build()
    )
    found.placement = None  # type: ignore[assignment] # as for links
    return Built(found)


def link_to(uid: str, title: str, **variables: str) -> Link:
    """Return a link from a value to another dashboard, with the same time range.

    `variables` maps a variable of the dashboard to a Grafana variable, such as a label of the value.
    """
    chosen = [f"var-{name}=${{{value}:percentencode}}" for name, value in variables.items()]
    query = "&".join(["${datasource:queryparam}", "${cluster:queryparam}", *chosen, "${__url_time_range}"])
    return _outside_menu(DashboardLink(title).url(f"/d/{uid}?{query}"))


def link_to_live_page(**values: str) -> Link:
    """Return a link from a value to the page of the collector at the address in the field Collector.

    `values` maps `run` and `rank` to Grafana variables, as in `link_to`.
    """
    shown = "&".join(f"{name}=${{{value}:percentencode}}" for name, value in values.items())
    return _outside_menu(DashboardLink("Live page and captures").url(f"${{collector}}/#{shown}"))


def lay_out(
    page: Dashboard, help_text: str, rows: Iterable[tuple[str, Iterable[Placed]]], *, is_open: int
) -> Dashboard:
    """Place a text on top of the page, and below it rows of panels, left to right, then downwards.

    The first `is_open` rows are open, the others are closed: Grafana queries what is in them once they are opened.
    Panels are numbered in their order, so a link to one stays valid as long as none is inserted before it.
    """
    number, top = 1, HELP_HEIGHT
    page.with_panel(Built(_place([_help(help_text)], number, top=0)[0]))
    for place, (title, panels) in enumerate(rows):
        number += 1
        row = Row(title).id(number).grid_pos(GridPos(h=1, w=GRID_COLUMNS, x=0, y=top))
        top += 1
        built = _place(select_in(panels, OF_CLUSTER), number + 1, top)
        number += len(built)
        if place < is_open:
            page.with_row(row)
            top = max(_find_end(each) for each in built)
        for each in built:
            (page if place < is_open else row).with_panel(Built(each))
        if place >= is_open:
            page.with_row(row)
    return page


HELP_HEIGHT: Final = 3


def _help(content: str) -> Placed:
    built = text.Panel().title("").mode(TextMode.MARKDOWN).content(content).transparent(transparent=True).build()
    built.field_config = FieldConfigSource(defaults=FieldConfig(), overrides=[])
    return Placed(Built(built), GRID_COLUMNS, HELP_HEIGHT)


def _place(panels: Iterable[Placed], number: int, top: int) -> list[Panel]:
    """Return the panels with their places from `top` on, and their numbers from `number` on."""
    placed: list[Panel] = []
    left = height = 0
    for panel, width, panel_height in panels:
        if left + width > GRID_COLUMNS:
            top, left, height = top + height, 0, 0
        built = panel.build()
        built.id_val = number + len(placed)
        built.grid_pos = GridPos(h=panel_height, w=width, x=left, y=top)
        placed.append(built)
        left, height = left + width, max(height, panel_height)
    return placed


def _find_end(panel: Panel) -> int:
    """Return the first free line below a panel that has its place."""
    place = cast("GridPos", panel.grid_pos)
    return place.y + place.h
