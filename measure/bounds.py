"""Bound everything in a message: every text, list and map of a message has its maximum length here.

A collector decodes messages before it can judge their sender. A map of a hundred thousand names in a report of a
megabyte would become a hundred thousand series of its /metrics. Agents stay well below these bounds; the number beside
each is the most that one sends.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

NAME_LENGTH_MAX: Final = 512
"""Characters of a name: of a phase (128), a process group, a column, a collective, a file in a stack (160)."""

SHORT_NAME_LENGTH_MAX: Final = 64
"""Characters of a network port's or interface's name. The kernel allows 63 for a card's, 15 for an interface's."""

TEXT_LENGTH_MAX: Final = 4096
"""Characters of a sentence: why something could not be read."""

NAMES_MAX: Final = 256
"""Entries of a map by name, and of a list of names: 5 phases and 16 of the user's, some 40 fields of a GPU."""

COLUMN_NAMES_MAX: Final = 1024
"""Names of columns; a table has a stricter limit of its own, with its own reason (COLUMNS_MAX in table.py)."""

GROUPS_MAX: Final = 4096
"""Process groups in a report; a rank is in some twenty."""

MEMBERS_MAX: Final = 2**18
"""Ranks of a process group."""

ITEMS_MAX: Final = 1024
"""Anything else that is listed: pending collectives (64), threads (32), frames of a stack (48), GPUs (1)."""

PORTS_MAX: Final = 64
"""Network ports, and interfaces, of a machine: an agent reports 16 and 8."""

NUMBER_MAX: Final = 2**63 - 1
"""Largest number that every reader of a message can hold. Sums of what ranks have sent may exceed it."""

Name = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
ShortName = Annotated[str, msgspec.Meta(max_length=SHORT_NAME_LENGTH_MAX)]
LongText = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=NAMES_MAX)]
ColumnNames = Annotated[tuple[Name, ...], msgspec.Meta(max_length=COLUMN_NAMES_MAX)]
GroupNames = Annotated[tuple[Name, ...], msgspec.Meta(max_length=GROUPS_MAX)]
Members = Annotated[tuple[int, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
Numbers = Annotated[Mapping[Name, int], msgspec.Meta(max_length=NAMES_MAX)]
Flags = Annotated[Mapping[Name, bool], msgspec.Meta(max_length=NAMES_MAX)]
Reasons = Annotated[Mapping[Name, LongText], msgspec.Meta(max_length=NAMES_MAX)]
Shape = Annotated[tuple[int, ...], msgspec.Meta(max_length=NAMES_MAX)]
Shapes = Annotated[tuple[Shape, ...], msgspec.Meta(max_length=NAMES_MAX)]

Some = msgspec.Meta(max_length=ITEMS_MAX)
"""Bound of a list of ITEMS_MAX elements."""

Ports = msgspec.Meta(max_length=PORTS_MAX)
"""Bound of a list of PORTS_MAX elements."""


def to_count(number: int) -> int:
    """Return a number, for example a sum of what ranks have sent, as one that is not negative and can be encoded.

    >>> to_count(-3), to_count(7), to_count(2**70) == NUMBER_MAX
    (0, 7, True)
    """
    return max(0, min(NUMBER_MAX, number))
