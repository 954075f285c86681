"""Builders of each kind of panel. The caller gives the queries."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from grafana_foundation_sdk.builders import heatmap, stat, statetimeline, statushistory, table, timeseries
from grafana_foundation_sdk.builders.common import GraphThresholdsStyleConfig as ThresholdsStyle
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TableColorTextCellOptions,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.table import Options as TableOptions

from deploy.grafana.generator.frame import DATA_SOURCE, GRID_COLUMNS, Built, Link, Placed

SECONDS: Final = "s"
RATIO: Final = "percentunit"
"""0 to 1, shown as a percentage."""
TIMES: Final = "suffix:x"
"""A factor: 1.5x."""
NUMBER: Final = "short"
BYTES: Final = "bytes"
BYTES_PER_S: Final = "binBps"
HERTZ: Final = "hertz"
WATTS: Final = "watt"
JOULES: Final = "joule"
CELSIUS: Final = "celsius"
PER_S: Final = "cps"
"""A count per second, with K and M, never as m/s."""
FLOPS: Final = "flops"
"""FLOPs per second, with G, T and P."""
GPU_HOURS: Final = "suffix:GPU h"
GPUS: Final = "suffix:GPUs"

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
FILL_OF_LINES: Final = 8
FILL_OF_AREAS: Final = 70
"""Opacity in %: faint for overlapping lines, full enough to distinguish areas."""

HALF, THIRD, WHOLE = GRID_COLUMNS // 2, GRID_COLUMNS // 3, GRID_COLUMNS
"""Widths in columns of the grid."""
SMALL, USUAL, LARGE = 4, 8, 11
"""Heights in Grafana's units of 30 pixels: a number, a graph with four lines of legend, a table of a dozen lines."""
SIXTH: Final = GRID_COLUMNS // 6

ROWS_MAX: Final = 24
"""Rows of a status panel and lines of a table that can be distinguished; a large run has more ranks."""

POINTS_MAX: Final = 120
"""Data points a panel requests, for any time range: two a minute of an hour. Queries over 16,384 ranks take half as
long as with one point a pixel, Grafana's default."""

Colors = Sequence[tuple[float | None, str]]
"""Values from which each color applies; the first one has no value."""


class Query(NamedTuple):
    """An expression and the name of its series; `{{label}}` stands for a label's value."""

    expr: str
    legend: str = ""


def too_high(yellow: float | None = None, red: float | None = None) -> Colors:
    """Return colors: green, from `yellow` on yellow, from `red` on red."""
    found: list[tuple[float | None, str]] = [(None, GREEN)]
    found += [(value, color) for value, color in ((yellow, YELLOW), (red, RED)) if value is not None]
    return found


def too_low(*, red: float, yellow: float) -> Colors:
    """Return colors: red below `red`, yellow below `yellow`, green above."""
    return [(None, RED), (red, YELLOW), (yellow, GREEN)]


PLAIN: Final[Colors] = [(None, BLUE)]
"""Color of a number that is neither good nor bad."""


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    colors: Colors | None = None,
    link: Link | None = None,
    most: float | None = None,
    width: int = HALF,
) -> Placed:
    """Return a graph of lines from 0 on; thresholds of the colors are dashed lines."""
    panel = _graph(title, description, unit, queries).fill_opacity(FILL_OF_LINES).line_width(1).min(0)
    if most is not None:
        panel.max(most)
    if colors is not None:
        style = ThresholdsStyle().mode(GraphThresholdsStyleMode.DASHED)
        panel.thresholds(_thresholds(colors)).thresholds_style(style)
    if link is not None:
        panel.data_links([link])
    return Placed(panel, width, USUAL)


def areas(
    title: str, description: str, unit: str, *queries: Query, parts_of_whole: bool = False, width: int = HALF
) -> Placed:
    """Return a graph of stacked areas; parts of a whole fill it from 0 to 1."""
    panel = _graph(title, description, unit, queries).fill_opacity(FILL_OF_AREAS).line_width(0).min(0)
    if parts_of_whole:
        panel.max(1)
    panel.stacking(StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return Placed(panel, width, USUAL)


def _graph(title: str, description: str, unit: str, queries: Sequence[Query]) -> timeseries.Panel:
    legend = (
        VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
        .calcs(["mean", "max", "lastNotNull"])
    )
    tooltip = VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    return (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .max_data_points(POINTS_MAX)
        .unit(unit)
        .show_points(VisibilityMode.NEVER)
        .legend(legend)
        .tooltip(tooltip)
        .targets([_range(query, number) for number, query in enumerate(queries)])
    )


def number(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *,
    colors: Colors = PLAIN,
    decimals: int | None = None,
    link: Link | None = None,
    width: int = SIXTH,
) -> Placed:
    """Return a panel with the current value, and its course in the background."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .max_data_points(POINTS_MAX)
        .unit(unit)
        .thresholds(_thresholds(colors))
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("-")
        .with_target(_range(Query(expr), 0))
    )
    if decimals is not None:
        panel.decimals(decimals)
    if link is not None:
        panel.data_links([link])
    return Placed(panel, width, SMALL)


def words(title: str, description: str, query: Query, *, link: Link | None = None, width: int = SIXTH) -> Placed:
    """Return a panel with the name of the series, not its value: for information in labels."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .thresholds(_thresholds(PLAIN))
        .graph_mode(BigValueGraphMode.NONE)
        .text_mode(BigValueTextMode.NAME)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("-")
        .with_target(_instant(query, 0))
    )
    if link is not None:
        panel.data_links([link])
    return Placed(panel, width, SMALL)


def heat_map(title: str, description: str, query: Query, *, width: int = HALF) -> Placed:
    """Return a heat map of counts by bucket over time. The series are the buckets, each named by its number."""
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .max_data_points(POINTS_MAX)
        .calculate(calculate=False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .cell_gap(1)
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .tooltip(heatmap.HeatmapTooltip().mode(TooltipDisplayMode.SINGLE).y_histogram(y_histogram=True))
        .show_legend()
        .with_target(_range(query, 0))
    )
    return Placed(panel, width, LARGE)


def cells(
    title: str, description: str, unit: str, query: Query, *, colors: Colors, link: Link, width: int = HALF
) -> Placed:
    """Return a panel with a row for each series and a cell for each time, colored by its value."""
    panel = (
        statushistory.Panel()
        .title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .max_data_points(POINTS_MAX)
        .unit(unit)
        .thresholds(_thresholds(colors))
        .show_value(VisibilityMode.NEVER)
        .row_height(0.9)
        .per_page(ROWS_MAX)
        .fill_opacity(FILL_OF_AREAS)
        .data_links([link])
        .with_target(_range(query, 0))
    )
    return Placed(panel, width, LARGE)


def states(
    title: str, description: str, names: Mapping[int, tuple[str, str]], *queries: Query, width: int = HALF
) -> Placed:
    """Return a bar for each series, colored by its value; `names` maps a value to its name and color."""
    mapped = {str(value): ValueMappingResult(text=text, color=color) for value, (text, color) in names.items()}
    mappings: list[ValueMapping] = [ValueMap(mapped)]
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .max_data_points(POINTS_MAX)
        .mappings(mappings)
        .show_value(VisibilityMode.AUTO)
        .merge_values(merge_values=True)
        .row_height(0.9)
        .fill_opacity(FILL_OF_AREAS)
        .targets([_range(query, number) for number, query in enumerate(queries)])
    )
    return Placed(panel, width, USUAL)


class Column(NamedTuple):
    """A column of a table: heading, expression of its values, unit and colors. `expr` None: a label.

    Without a heading it is not shown: its expression says which lines there are.
    """

    heading: str
    expr: str | None = None
    unit: str = NUMBER
    colors: Colors | None = None
    link: Link | None = None
    also: Link | None = None
    decimals: int | None = None


def listing(
    title: str,
    description: str,
    columns: Mapping[str, Column],
    *,
    keys: Sequence[str],
    first: str,
    width: int = WHOLE,
) -> Placed:
    """Return a table with a line for every value of the labels `keys`, sorted by the column `first`, largest on top.

    `columns` are in their order: a label by its name, or any name with an expression, of which the query is one. Only
    the first expression has to give the labels that are no keys. What else the series are labeled with, such as the
    target they were scraped from, is left out, so that lines of several queries come together.
    """
    labels = [name for name, column in columns.items() if column.expr is None]
    asked = [name for name, column in columns.items() if column.expr is not None]
    values = {name: f"Value #{_ref(number)}" if len(asked) > 1 else "Value" for number, name in enumerate(asked)}
    kept = [dict.fromkeys((*keys, *labels)) if number == 0 else keys for number in range(len(asked))]
    exprs = [
        f"max by ({', '.join(dict.fromkeys(('cluster', *by)))}) ({columns[name].expr})"
        for name, by in zip(asked, kept, strict=True)
    ]
    fields = {values.get(name, name): column for name, column in columns.items() if column.heading}
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .targets([_rows(expr, number) for number, expr in enumerate(exprs)])
        .transformations([_MERGE, *_pick_columns(fields), _sort_by(columns[first].heading)])
    )
    for column in fields.values():
        panel.override_by_name(column.heading, _look_of(column))
    built = panel.build()
    if isinstance(built.options, TableOptions):
        built.options.footer = None  # an option up to Grafana 11 only, and none that is wanted
    return Placed(Built(built), width, LARGE)


_MERGE: Final = DataTransformerConfig("merge", options={})


def _sort_by(heading: str) -> DataTransformerConfig:
    return DataTransformerConfig("sortBy", options={"sort": [{"field": heading, "desc": True}]})


def _pick_columns(fields: Mapping[str, Column]) -> tuple[DataTransformerConfig, DataTransformerConfig]:
    """Return the transformation that keeps these fields, in this order, under their headings."""
    headings = {
        "indexByName": {field: place for place, field in enumerate(fields)},
        "renameByName": {field: column.heading for field, column in fields.items()},
    }
    return (
        DataTransformerConfig("filterFieldsByName", options={"include": {"names": list(fields)}}),
        DataTransformerConfig("organize", options=headings),
    )


def _look_of(column: Column) -> list[DynamicConfigValue]:
    look = [DynamicConfigValue("unit", column.unit)] if column.expr is not None else []
    if column.decimals is not None:
        look.append(DynamicConfigValue("decimals", column.decimals))
    if column.colors is not None:
        look.append(DynamicConfigValue("thresholds", _thresholds(column.colors).build()))
        look.append(DynamicConfigValue("custom.cellOptions", TableColorTextCellOptions()))
    links = [link.build() for link in (column.link, column.also) if link is not None]
    if links:
        look.append(DynamicConfigValue("links", [{"title": link.title, "url": link.url} for link in links]))
    return look


def _thresholds(colors: Colors) -> ThresholdsConfig:
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([Threshold(value, color) for value, color in colors])


def _ref(number: int) -> str:
    """Return the names A, B, C ... that Grafana gives the queries of a panel."""
    return chr(ord("A") + number)


def _query(query: Query, number: int) -> Dataquery:
    return Dataquery().datasource(DATA_SOURCE).expr(query.expr).legend_format(query.legend).ref_id(_ref(number))


def _range(query: Query, number: int) -> Dataquery:
    return _query(query, number).range()


def _instant(query: Query, number: int) -> Dataquery:
    return _query(query, number).instant()


def _rows(expr: str, number: int) -> Dataquery:
    return _instant(Query(expr), number).format(PromQueryFormat.TABLE)
