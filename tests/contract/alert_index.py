"""The index of the runbooks, written from the rules: `python -m tests.contract.alert_index` writes it."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "rules" / "alerts.yml"
INDEX = ROOT / "docs" / "runbooks" / "README.md"

INTRODUCTION = """\
# Runbooks

A page for each alert of `deploy/prometheus/rules/alerts.yml`: what it means, how to check, what to do. In the pages
RUN, NODE and COLLECTOR stand for what the alert's message names.

`role`: symptoms are silenced while a cause in the same run is told (`deploy/alertmanager/alertmanager.yml`).

| alert | severity | about | role | after | says |
|---|---|---|---|---|---|
"""


def render_index() -> str:
    """One line a rule, in the order of their names, the more severe first."""
    lines = []
    for rule in sorted(read_alerts(), key=lambda rule: (rule["alert"], rule["labels"]["severity"])):
        labels, name = rule["labels"], rule["alert"]
        says = say(rule["annotations"]["summary"])
        lines.append(
            f"| [{name}]({name}.md) | {labels['severity']} | {labels['level']} | {labels['role']} "
            f"| {rule.get('for', '0m')} | {says} |"
        )
    return INTRODUCTION + "\n".join(lines) + "\n"


def read_alerts() -> list[dict[str, Any]]:
    """The alerts, in the order in which they stand."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def say(summary: str) -> str:
    """A summary with the names of its labels for their values.

    >>> say("Rank {{ $labels.rank }} is {{ humanizePercentage $value }} slow")
    'Rank RANK is N slow'
    """
    said = summary
    while "{{" in said:
        before, _, rest = said.partition("{{")
        template, _, after = rest.partition("}}")
        label = template.partition("$labels.")[2].strip()
        said = f"{before}{label.upper() or 'N'}{after}"
    return said


if __name__ == "__main__":
    INDEX.write_text(render_index(), encoding="utf-8")
