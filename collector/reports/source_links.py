"""Show places in the user's code: as text, and on a page as links to an editor or a code host."""

from collections.abc import Iterable
from urllib.parse import quote

from rankscope.collector.reports.trace_cells import MISSING, Cell, printable
from rankscope.collector.traces.report import SourceRow
from rankscope.measure.errors import SettingError

SCHEMES = ("http://", "https://", "vscode://")
"""Templates of other schemes are refused: what they would open is not known."""
WHOLE_FROM = 0.995
"""Shares from here on are not shown: they would read 100 %."""


def check_template(template: str | None) -> None:
    """Raise SettingError for a template of source links that does not say where the path goes, or of another scheme."""
    if template is not None and "{path}" not in template:
        raise SettingError(
            f"--source-url is {template!r}; it must contain {{path}}, and may contain {{line}}, such as "
            "vscode://file/HOME/PROJECT/{path}:{line}"
        )
    if template is not None and not template.lower().startswith(SCHEMES):
        raise SettingError(
            f"--source-url is {template!r}; it must begin with {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}"
        )


def make_link(template: str | None, file: str, line: int) -> str | None:
    """Return the address of a line by a template with `{path}` and `{line}`; None without one, and for one of a scheme
    that is not in SCHEMES. A slash in front of the path counts once.

    >>> make_link("https://host/blob/1a2b/{path}#L{line}", "src/my train.py", 54)
    'https://host/blob/1a2b/src/my%20train.py#L54'
    >>> make_link("javascript:alert('{path}')", "train.py", 54) is None
    True
    """
    if template is None or not template.lower().startswith(SCHEMES):
        return None
    path = quote(file.replace("\\", "/"), errors="replace")
    if "/{path}" in template:
        path = path.lstrip("/")
    return template.replace("{line}", str(line)).replace("{path}", path)


def source_cell(sources: Iterable[SourceRow], whole_ns: int | None) -> Cell:
    """Return a cell of the place with the most time, and its share of `whole_ns` where that is not all of it."""
    found: dict[tuple[str, int, str], int] = {}
    for one in sources:
        key = (one.file, one.line, one.function)
        found[key] = found.get(key, 0) + one.total_ns
    if not found:
        return Cell(MISSING)
    (file, line, function), most_ns = max(found.items(), key=lambda item: item[1])
    share = most_ns / whole_ns if whole_ns else 1.0
    part = f" {share * 100:.0f} %" if share < WHOLE_FROM else ""
    return Cell(printable(f"{file}:{line} ({function}){part}"), source=(file, line))
