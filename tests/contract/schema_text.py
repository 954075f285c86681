"""Normalize msgspec's descriptions of classes, so that they are the same in every version of it and of Python."""

import json
from inspect import cleandoc
from typing import Any


def settle(schemas: dict[str, Any]) -> None:
    """Bring these, by the names of their classes, into the one form that is kept in files."""
    for schema in schemas.values():
        schema["description"] = cleandoc(schema["description"])  # Python removes the indents itself from 3.13 on
        _settle(schema)


def _settle(part: Any) -> None:
    if isinstance(part, dict):
        part.get("anyOf", []).sort(key=json.dumps)  # the types of a value: each release of msgspec has its own order
        if "minItems" in part and "prefixItems" in part:  # before 0.22 an empty list if all may be left out
            part["minItems"] = sum("default" not in item for item in part["prefixItems"])
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _settle(inner)
