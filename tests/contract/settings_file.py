"""The TOML file of a configuration, as configs/ has it."""

import textwrap
from collections.abc import Iterator

from rankscope.measure.settings import Setting, Settings, Value, describe_limits, find_settings, to_toml

WIDTH = 116
"""Characters of a line of comments."""


def document(config_class: type[Settings]) -> str:
    """Return the TOML file of a configuration: every key at its default, below its meaning, unit, limits and variable.

    Reading it back gives the defaults.
    """
    first = [
        f"# {config_class.TITLE}",
        f"# Used when the environment variable {config_class.FILE_VARIABLE} names this file. Every value here is the",
        "# default; a variable named below wins over the file. Keys that are left out keep their default.",
    ]
    blocks = ["\n".join(first)]
    for key, default, known in find_settings(config_class):
        facts = [*_describe(default, known), f"environment: {config_class.PREFIX}{key.upper()}"]
        comments = [*textwrap.wrap(known.meaning, width=WIDTH), "; ".join(facts)]
        blocks.append("\n".join([*(f"# {line}" for line in comments), f"{key} = {to_toml(default)}"]))
    return "\n\n".join(blocks) + "\n"


def _describe(default: Value, known: Setting) -> Iterator[str]:
    if known.unit:
        yield f"unit: {known.unit}"
    yield f"default: {to_toml(default)}"
    if limits := describe_limits(known):
        yield f"range: {limits}"
    if known.choices:
        yield f"one of: {', '.join(known.choices)}"
