"""Make the tables of a trace one after the other, and tell how many of them are made: of a large trace some take
seconds.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Makers: TypeAlias = Mapping[str, Callable[[], Any]]
"""What makes each table, by the table's name."""


def make_tables(makers: Makers, on_part: Callable[[float], None] | None = None) -> dict[str, Any]:
    """Return what is made, by the same names; `on_part` is told after each which part of all is made, up to 1.

    >>> make_tables({"rows": lambda: [1], "sum": lambda: 1}, print)
    0.5
    1.0
    {'rows': [1], 'sum': 1}
    """
    found = {}
    for count, (name, make) in enumerate(makers.items(), 1):
        found[name] = make()
        if on_part is not None:
            on_part(count / len(makers))
    return found
