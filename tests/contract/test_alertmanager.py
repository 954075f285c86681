"""Alertmanager's configuration as a contract: amtool accepts it, and it routes, groups and silences what is fired."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.promql_names import find_labels
from tests.contract.test_alert_rules import ALERTS, find_known
from tests.programs import find_program

FOLDER = Path(__file__).parents[2] / "deploy" / "alertmanager"
CONFIG = yaml.safe_load((FOLDER / "alertmanager.yml").read_text())
RULES = CONFIG["inhibit_rules"]
MATCHER = re.compile(r'(\w+)(=~|!=|=)"(.*)"')

Labels = dict[str, str]


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [find_program("amtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER)


def matches(matchers: list[str], labels: Labels) -> bool:
    """Return whether Alertmanager would match; a missing label is an empty one."""
    for matcher in matchers:
        found = MATCHER.fullmatch(matcher)
        assert found is not None, matcher
        value, operator, wanted = labels.get(found[1], ""), found[2], found[3]
        hit = re.fullmatch(wanted, value) is not None if operator == "=~" else (value == wanted) == (operator == "=")
        if not hit:
            return False
    return True


def labels_of(alert: str, **more: str) -> Labels:
    """Return the labels that an alert is matched by; of two rules of one name the first."""
    rule = next(rule for rule in ALERTS if rule["alert"] == alert)
    return {"alertname": alert, **rule["labels"], **more}


def seconds(wait: str) -> int:
    """Return a `for`, which has one unit here."""
    return int(wait[:-1]) * {"s": 1, "m": 60}[wait[-1]]


def silences(source: Labels, target: Labels) -> bool:
    """Return whether the one silences the other while both fire."""
    return any(
        matches(rule["source_matchers"], source)
        and matches(rule["target_matchers"], target)
        and all(source.get(label, "") == target.get(label, "") for label in rule["equal"])
        for rule in RULES
    )


def test_amtool_has_no_complaint() -> None:
    checked = amtool("check-config", "alertmanager.yml")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"{len(RULES)} inhibit rules" in checked.stdout


def test_the_services_that_stand_as_comments_are_accepted_too(tmp_path: Path) -> None:
    text = (FOLDER / "alertmanager.yml").read_text()
    config, services = re.subn(r"^    # ( *)(\w+_configs:|- |\w+: )", r"    \1\2", text, flags=re.MULTILINE)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "rankscope.tmpl").write_text((FOLDER / "templates" / "rankscope.tmpl").read_text())
    (tmp_path / "alertmanager.yml").write_text(config)
    checked = amtool("check-config", tmp_path / "alertmanager.yml")
    assert (checked.returncode, checked.stderr) == (0, "")
    written = yaml.safe_load(config)["receivers"]
    kinds = {kind for receiver in written for kind in receiver} - {"name"}
    assert kinds == {"webhook_configs", "pagerduty_configs", "slack_configs", "email_configs"}
    assert services > len(kinds)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_goes_to_whom_its_severity_names(rule: dict[str, Any]) -> None:
    receiver = {"critical": "rankscope-pager", "warning": "rankscope-team", "info": "rankscope-log"}
    labels = {"alertname": rule["alert"], "run": "a", **rule["labels"]}
    wanted = receiver[rule["labels"]["severity"]]
    command = ("config", "routes", "test", "--config.file=alertmanager.yml", f"--verify.receivers={wanted}")
    done = amtool(*command, *(f"{name}={value}" for name, value in labels.items()))
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_message_a_run_and_one_for_the_collector() -> None:
    assert CONFIG["route"]["group_by"] == ["cluster", "run"]
    by_own_labels = [route["matchers"] for route in CONFIG["route"]["routes"] if "group_by" in route]
    assert by_own_labels == [['level="collector"']]
    without_run = [rule["alert"] for rule in ALERTS if "run" not in find_labels(rule["expr"], find_known())]
    assert {labels_of(alert)["level"] for alert in without_run} == {"collector"}


# -- inhibition -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule["source_matchers"]))
def test_inhibitions_name_existing_alerts_and_labels(rule: dict[str, Any]) -> None:
    for side in ("source_matchers", "target_matchers"):
        found = [each for each in ALERTS if matches(rule[side], {"alertname": each["alert"], **each["labels"]})]
        assert found, rule[side]
        for each in found:
            assert find_labels(each["expr"], find_known()) >= set(rule["equal"]), each["alert"]


def test_every_name_in_an_inhibition_is_that_of_an_alert() -> None:
    # A regular expression with a dead branch would silence less than it seems to.
    names = {rule["alert"] for rule in ALERTS}
    for rule in RULES:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            found = MATCHER.fullmatch(matcher)
            assert found is not None
            if found[1] != "alertname":
                continue
            branches = re.fullmatch(r"(\w*)\(([\w|]+)\)(\w*)", found[3])
            spelled = {found[3]} if branches is None else {
                f"{branches[1]}{branch}{branches[3]}" for branch in branches[2].split("|")
            }  # fmt: skip
            assert spelled <= names


def test_node_silences_only_its_own_ranks() -> None:
    node = labels_of("RankscopeStragglerNode", run="a", node="n1")
    assert silences(node, labels_of("RankscopeStragglerRank", run="a", node="n1", rank="3"))
    assert not silences(node, labels_of("RankscopeStragglerRank", run="a", node="n2", rank="9"))
    assert not silences(node, labels_of("RankscopeStragglerRank", run="b", node="n1", rank="3"))
    gone = labels_of("RankscopeNodeMissing", run="a", node="n1")
    assert silences(gone, labels_of("RankscopeRankMissing", run="a", node="n1", rank="3"))
    assert not silences(gone, labels_of("RankscopeRankMissing", run="a", node="n2", rank="9"))


@pytest.mark.parametrize("source", ["RankscopeStragglerRank", "RankscopeStragglerNode"])
def test_straggler_silences_symptoms_of_its_run_but_no_stall(source: str) -> None:
    slow = labels_of(source, run="a", node="n1")
    for rule in ALERTS:
        target = labels_of(rule["alert"], run="a")
        wanted = target["role"] == "symptom" and rule["alert"] != "RankscopeRunStalled"
        assert silences(slow, target) == wanted, rule["alert"]
        assert not silences(slow, target | {"run": "b"}), rule["alert"]


@pytest.mark.parametrize("cause", ["RankscopeXid", "RankscopeUncorrectableEcc", "RankscopeGpuThrottled"])
def test_what_is_known_of_a_gpu_is_never_silenced(cause: str) -> None:
    target = labels_of(cause, run="a", node="n1", rank="3", gpu="G")
    assert not [
        rule["alert"]
        for rule in ALERTS
        if silences(labels_of(rule["alert"], run="a", node="n1", rank="3", gpu="G"), target)
    ]


def test_what_silences_another_is_told_first() -> None:
    for source in ALERTS:
        for target in ALERTS:
            pair = [
                {"alertname": rule["alert"], **rule["labels"], "run": "a", "node": "n"} for rule in (source, target)
            ]
            if silences(*pair):
                assert seconds(source["for"]) < seconds(target["for"]), (source["alert"], target["alert"])


def test_no_two_alerts_silence_each_other() -> None:
    every = [labels_of(rule["alert"], run="a", node="n1", rank="3") for rule in ALERTS]
    mutual = [(one["alertname"], other["alertname"]) for one in every for other in every if silences(one, other)]
    assert [pair for pair in mutual if pair[::-1] in mutual] == []


# -- templates --------------------------------------------------------------------------------------------------------


def alert_of(name: str, status: str, **labels: str) -> dict[str, object]:
    annotations = {"summary": f"{name} is so", "description": "It is. Cause: c. Cost: 3.", "runbook_url": f"at/{name}"}
    labels = {"alertname": name, **labels}
    return {"status": status, "labels": labels, "annotations": annotations, "startsAt": "2026-03-14T09:26:53Z"}


def render(template: str, tmp_path: Path, run: str | None, *alerts: dict[str, object], **common: str) -> str:
    data = {
        "status": "firing", "alerts": alerts, "groupLabels": {} if run is None else {"run": run},
        "commonLabels": common,
    }  # fmt: skip
    path = tmp_path / "data.json"
    path.write_text(json.dumps(data))
    text = f'--template.text={{{{ template "{template}" . }}}}'
    done = amtool("template", "render", "--template.glob=templates/*.tmpl", f"--template.data={path}", text)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_title_says_which_run_and_what(tmp_path: Path) -> None:
    alerts = [
        alert_of("RankscopeRankMissing", "firing", rank="3"), alert_of("RankscopeRankMissing", "firing", rank="4"),
        alert_of("RankscopeXid", "firing"), alert_of("RankscopeDataBound", "resolved"),
    ]  # fmt: skip
    assert render("rankscope.title", tmp_path, "bert", *alerts) == "bert: 3 firing (RankscopeRankMissing, RankscopeXid)"
    assert render("rankscope.title", tmp_path, "bert", alerts[3]) == "bert: resolved (RankscopeDataBound)"


def test_the_title_of_a_collector_says_its_address(tmp_path: Path) -> None:
    down = alert_of("RankscopeCollectorDown", "firing", instance="c:18491")
    title = render("rankscope.title", tmp_path, None, down, instance="c:18491")
    assert title == "c:18491: 1 firing (RankscopeCollectorDown)"


def test_the_text_has_a_paragraph_for_each_alert_and_its_runbook(tmp_path: Path) -> None:
    alerts = [alert_of("RankscopeXid", "firing", severity="critical"), alert_of("RankscopeDataBound", "resolved")]
    assert render("rankscope.text", tmp_path, "bert", *alerts).splitlines() == [
        "[critical] RankscopeXid is so, since 2026-03-14 09:26 UTC",
        "It is. Cause: c. Cost: 3.",
        "What to do: at/RankscopeXid",
        "",
        "[resolved] RankscopeDataBound is so",
    ]
