"""What all dashboards have in common: their names, variables, links to each other, and the grid panels stand on."""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import AnnotationQuery as AnnotationQueryModel
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    GridPos,
    Panel,
    VariableModel,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.dashboard import DashboardLink as DashboardLinkModel

DATA_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The one chosen at the top of the page, so that the dashboards fit any Grafana that has a Prometheus."""
TAG: Final = "rankscope"
"""By it the dashboards find each other."""
FLEET, RUN, RANK, NODE = "rankscope-fleet", "rankscope-run", "rankscope-rank", "rankscope-node"
"""The dashboards' uids: their addresses are /d/UID."""

GRID_COLUMNS: Final = 24
"""The width of a page in Grafana's units."""

OF_RUN: Final = 'run="$run"'
"""The series of the chosen run."""
OF_RANK: Final = 'run="$run",rank="$rank"'
OF_NODE: Final = 'run="$run",node="$node",rank=~"$rank"'


T = TypeVar("T")


class Placed(NamedTuple):
    """A panel and its size on the grid."""

    panel: Builder[Panel]
    width: int
    height: int


class Built(Builder[T]):
    """A part that is complete, where the library wants one that is to be built."""

    def __init__(self, part: T) -> None:
        self._part = part

    def build(self) -> T:
        """The part itself."""
        return self._part


Link = Built[DashboardLinkModel]
"""To another dashboard, or to all."""


def dashboard(uid: str, title: str, description: str, *variables: QueryVariable) -> Dashboard:
    """One without panels, with the data source and these variables to choose, and links to the others."""
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
        .link(_in_sight(others))
        .with_variable(_with_its_own_fields(DatasourceVariable("datasource").label("Prometheus").type("prometheus")))
    )
    for variable in variables:
        page.with_variable(_with_its_own_fields(variable))
    return page


def _in_sight(link: DashboardLink) -> Link:
    """The library puts every link into a menu."""
    built = link.build()
    built.placement = None  # type: ignore[assignment] # it may be None, and then is not written
    return Built(built)


def _with_its_own_fields(variable: Builder[VariableModel]) -> Built[VariableModel]:
    """The library gives every variable the fields of those that are intervals, and one that is new, at its default."""
    built = variable.build()
    built.auto = built.auto_count = built.auto_min = built.allow_custom_value = None
    return Built(built)


def run_variable() -> QueryVariable:
    """One run."""
    return _variable("run", "label_values(rankscope_run_info, run)", VariableSort.ALPHABETICAL_ASC)


def node_variable() -> QueryVariable:
    """One node of the run."""
    query = f"label_values(rankscope_rank_info{{{OF_RUN}}}, node)"
    return _variable("node", query, VariableSort.NATURAL_ASC)


def rank_variable() -> QueryVariable:
    """One rank of the run."""
    return _variable("rank", f"label_values(rankscope_rank_info{{{OF_RUN}}}, rank)", VariableSort.NUMERICAL_ASC)


def ranks_of_node_variable() -> QueryVariable:
    """Some ranks of the node, or all. All are one expression, not the names of all."""
    query = f'label_values(rankscope_rank_info{{{OF_RUN},node="$node"}}, rank)'
    found = _variable("rank", query, VariableSort.NUMERICAL_ASC)
    return found.multi(multi=True).include_all(include_all=True).all_value(".+")


def _variable(name: str, query: str, sort: VariableSort) -> QueryVariable:
    # The form that Grafana's own editor writes: 1 stands for a query of the values of a label.
    asked: dict[str, object] = {"query": query, "qryType": 1, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    return (
        QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATA_SOURCE)
        .query(asked)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
    )


def annotation(name: str, expr: str, *, title: str, text: str, colour: str) -> Built[AnnotationQueryModel]:
    """A band over every graph for as long as the expression gives a series; its labels fill `title` and `text`."""
    target = Dataquery().expr(expr).range().ref_id("Anno").datasource(DATA_SOURCE)
    found = (
        AnnotationQuery()
        .name(name)
        .datasource(DATA_SOURCE)
        .enable(enable=True)
        .icon_color(colour)
        .target(target)
        .title_format(title)
        .text_format(text)
        .build()
    )
    found.placement = None  # type: ignore[assignment] # as for links
    return Built(found)


def link_to(uid: str, title: str, **variables: str) -> Link:
    """A link of a value to another dashboard, in the same time. What the variables are set to is the name of one of
    Grafana's own, such as a label of the value.
    """
    chosen = [f"var-{name}=${{{value}:percentencode}}" for name, value in variables.items()]
    query = "&".join(["${datasource:queryparam}", *chosen, "${__url_time_range}"])
    return _in_sight(DashboardLink(title).url(f"/d/{uid}?{query}"))


def lay_out(page: Dashboard, rows: Iterable[tuple[str, Iterable[Placed]]]) -> Dashboard:
    """Put rows of panels onto the page, each panel beside the last one or, where there is no room, below it.

    Panels have numbers in the order they stand, so that a link to one stays good as long as none is put before it.
    """
    number = top = 0
    for title, panels in rows:
        number += 1
        page.with_row(Row(title).id(number).grid_pos(GridPos(h=1, w=GRID_COLUMNS, x=0, y=top)))
        top += 1
        left = height = 0
        for panel, width, panel_height in panels:
            if left + width > GRID_COLUMNS:
                top, left, height = top + height, 0, 0
            number += 1
            built = panel.build()
            built.id_val = number
            built.grid_pos = GridPos(h=panel_height, w=width, x=left, y=top)
            page.with_panel(Built(built))
            left, height = left + width, max(height, panel_height)
        top += height
    return page
