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
RUN and NODE stand for what the alert's message names, COLLECTOR for the machine of your collector: with
`export RANKSCOPE_URL=http://COLLECTOR:18491 RANKSCOPE_TOKEN_FILE=...` the commands need no `--url`; `rankscope capture`
needs `RANKSCOPE_CONTROL_TOKEN_FILE=...` besides. Findings without an alert are in [findings](findings.md).

- **Urgent?** `critical`: act now. `warning`: in working hours. `info`: no action needed. Severities of incidents are
  their own ([incidents.md](../incidents.md#severity)): those rise with time and cost. A failed run is a warning:
  waiting loses no more steps, but its GPUs may stay reserved and idle. A collector that is down is critical, since
  nothing else is found meanwhile.
- **Before you restart**: keep what `rankscope status RUN --json-file status.json` and
  `rankscope incidents RUN --json-file incidents.json` write. A collector that rank 0 has started ends with its run,
  and without a `store` what it knew is gone.
- **Over?** Alertmanager sends `[resolved]`, and `rankscope incidents RUN --open` is empty.
- **To hand over**: the output of `rankscope incidents RUN --json`.
- **Silenced**: a slow or missing rank or node silences the symptoms of its run, a stalled run all other symptoms, a
  node its ranks, and slow data loading idle GPUs (`deploy/alertmanager/alertmanager.yml`).

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
