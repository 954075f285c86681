"""Write the index of the runbooks from the rules: `python -m tests.contract.alert_index`."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "rules" / "alerts.yml"
INDEX = ROOT / "docs" / "runbooks" / "README.md"

INTRODUCTION = """\
# Runbooks

A page for each alert of `deploy/prometheus/rules/alerts.yml`: what it means, how to check, what to do. In the pages
RUN, NODE and COLLECTOR stand for what the alert's message names. Findings without an alert are in
[findings](findings.md).

`role`: symptoms are silenced while a cause in the same run is firing (`deploy/alertmanager/alertmanager.yml`).

| alert | severity | about | role | after | summary |
|---|---|---|---|---|---|
"""


def render_index() -> str:
    """Return one line a rule, in the order of their names, the more severe first."""
    lines = []
    for rule in sorted(read_alerts(), key=lambda rule: (rule["alert"], rule["labels"]["severity"])):
        labels, name = rule["labels"], rule["alert"]
        summary = fill_summary(rule["annotations"]["summary"])
        lines.append(
            f"| [{name}]({name}.md) | {labels['severity']} | {labels['level']} | {labels['role']} "
            f"| {rule.get('for', '0m')} | {summary} |"
        )
    return INTRODUCTION + "\n".join(lines) + "\n"


def read_alerts() -> list[dict[str, Any]]:
    """Return the alerts, in the order of the file."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def fill_summary(summary: str) -> str:
    """Return a summary with the names of its labels in place of their values.

    >>> fill_summary("Rank {{ $labels.rank }} is {{ humanizePercentage $value }} slow")
    'Rank RANK is N slow'
    """
    text = summary
    while "{{" in text:
        before, _, rest = text.partition("{{")
        template, _, after = rest.partition("}}")
        label = template.partition("$labels.")[2].strip()
        text = f"{before}{label.upper() or 'N'}{after}"
    return text


if __name__ == "__main__":
    INDEX.write_text(render_index(), encoding="utf-8")
