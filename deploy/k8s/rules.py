"""Write the rules of deploy/prometheus as the object that the Prometheus operator reads.

    python deploy/k8s/rules.py

It is made anew after each change of the rules; a test says when that was forgotten.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1]
RULES = DEPLOY / "prometheus" / "rules"
OBJECT = DEPLOY / "k8s" / "monitoring" / "prometheusrule.yaml"
HEAD = """\
# The recording rules and alerts of deploy/prometheus/rules, which have the comments and the tests.
# Made by: python deploy/k8s/rules.py
"""


def render() -> str:
    """The text of the object."""
    groups: list[Any] = []
    for file in sorted(RULES.glob("*.yml")):
        groups += yaml.safe_load(file.read_text())["groups"]
    labels = {"app.kubernetes.io/name": "rankscope", "app.kubernetes.io/component": "collector"}
    found = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "rankscope", "labels": labels},
        "spec": {"groups": groups},
    }
    return HEAD + yaml.safe_dump(found, sort_keys=False, width=116, allow_unicode=True)


if __name__ == "__main__":
    OBJECT.write_text(render())
    print(f"wrote {OBJECT.relative_to(DEPLOY.parent)}", file=sys.stderr)
