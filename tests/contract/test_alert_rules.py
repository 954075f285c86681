"""The rules of Prometheus as a contract: promtool accepts them and their tests, and they name what there is.

Each alert has a file of tests in deploy/prometheus/tests and a page in docs/runbooks, both with its name.
"""

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankscope.collector.detect.finding import PAUSES, STRAGGLER
from rankscope.collector.detect.suggestions import ADVICE, FINDINGS_PAGE, OF_A_SLOW_NODE
from rankscope.collector.incidents.nodes import OF_SCRIPTS, RATIO_MIN, RUNS_MIN
from rankscope.collector.publish.metrics.catalog import CATALOG
from tests.contract.promql_names import CLUSTER, Labels, find_catalog_labels, find_labels, find_uses
from tests.contract.promql_syntax import PromqlError
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "rules"
RUNBOOKS = ROOT / "docs" / "runbooks"
CONFIGS = sorted(FOLDER.glob("*.yml"))
STATEFUL_SET = ROOT / "deploy" / "k8s" / "collector" / "statefulset.yaml"
TESTS = sorted((FOLDER / "tests").glob("Rankscope*.yml"))
TESTS_OF_RECORDED = FOLDER / "tests" / "recording.yml"
HTTP_PORT = 18491
SEVERITIES = {"critical", "warning", "info"}
LEVELS = {"run", "node", "rank", "gpu", "collector"}
ROLES = {"cause", "symptom"}
RUNBOOK = (
    "{{{{ with $externalLabels.rankscope_runbooks }}}}{{{{ . }}}}{{{{ else }}}}http://127.0.0.1:18491/live/runbooks"
    "{{{{ end }}}}/{}.md"
)
COST_MAX = 5
"""Rules that read every rank or GPU at each evaluation; all others read recorded series, or few series."""

Rule = dict[str, Any]


def read_rules(name: str) -> list[Rule]:
    """Return the rules of a file, in their order."""
    groups = yaml.safe_load((RULES / f"{name}.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDED, ALERTS = read_rules("recording"), read_rules("alerts")
NAMES = sorted({rule["alert"] for rule in ALERTS})


FINDING_RUNBOOKS = {
    *((kind, advice.runbook) for kind, advice in ADVICE.items() if advice.runbook != FINDINGS_PAGE),
    (STRAGGLER, OF_A_SLOW_NODE),
}

OF_MEASURES = {"memory_pressure", "nothing_heard", "out_of_memory", "run_failure"}
"""Kinds whose alert is about a measure: allocator retries, GPU memory, the state of the run."""


STATES_WITHOUT_ALERT = {
    "rankscope_rank_up": "RankscopeRankMissing reads rankscope_rank_missing: who has ended well is not up either",
    "rankscope_rank_stalled": "RankscopeRunStalled reads rankscope_run_stalled_ranks: one alert a run, not one a rank",
    "rankscope_straggler": "RankscopeStragglerRank reads rankscope_finding_slowdown_ratio of the same finding",
    "rankscope_finding_not_judged": "so is every run at its start, and any with too few ranks; the run's page says why",
    "rankscope_port_up": (
        "unused ports are down for good; one that fails in use is a slow link, or stalls the run: both have alerts"
    ),
    "rankscope_agent_part_dropped": (
        "the agent keeps its budget so, as meant; RankscopeAgentOverhead fires where that does not suffice"
    ),
}
"""States of 0 or 1 that no alert is about, and why nobody is to be called for them."""
IS_STATE = re.compile(r"1 (?:while|if) ")


@functools.cache
def find_known() -> dict[str, Labels]:
    """Return the labels of all families, and of the results of the recording rules."""
    known = find_catalog_labels()
    for rule in RECORDED:
        known[rule["record"]] = find_labels(rule["expr"], known)
    return known


@pytest.mark.parametrize(("kind", "runbook"), sorted(FINDING_RUNBOOKS))
def test_finding_and_alert_of_one_kind_share_a_runbook(kind: str, runbook: str) -> None:
    # Alerts about metrics name the kinds that may be their cause in the message.
    rules = [rule for rule in ALERTS if rule["alert"] == runbook]
    text = "".join(rule["expr"] + rule["annotations"]["description"] for rule in rules)
    named = {one for found in re.findall(r'kind=~?\\?"([^"\\]+)', text) for one in found.split("|")}
    assert (RUNBOOKS / f"{runbook}.md").is_file()
    assert kind in named or kind in OF_MEASURES


def find_queries(template: str) -> Iterator[str]:
    """Yield the PromQL that a message asks for, with some value for each that is set in."""
    for text in re.findall(r'(?:query|printf)\s+"((?:[^"\\]|\\.)*)"', template):
        query = text.replace('\\"', '"').replace("%q", '"x"').replace("%f", "0.5")
        if not re.fullmatch(r"%[.\d]*f", text):
            yield query


def fires(check: dict[str, Any]) -> bool:
    return bool(check.get("exp_alerts"))


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [find_program("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER)


# -- promtool ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_prometheus_accepts_the_configuration_and_its_rules(config: Path, tmp_path: Path) -> None:
    # Debian builds Prometheus without the discovery of Kubernetes, which then rejects its key: another discovery
    # replaces it, and the test below checks the relabeling.
    text = re.sub(r"kubernetes_sd_configs:\n( +)- role: pod", r"dns_sd_configs:\n\1- names: [pods]", config.read_text())
    copy = tmp_path / config.name
    copy.write_text(text.replace("rules/*.yml", f"{RULES}/*.yml").replace("targets/*.json", f"{FOLDER}/targets/*.json"))
    checked = promtool("check", "config", copy)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "2 rule files found" in checked.stdout


def test_discovery_keeps_the_collectors_port_of_its_pods() -> None:
    pod = yaml.safe_load(STATEFUL_SET.read_text())["spec"]["template"]
    for job in yaml.safe_load((FOLDER / "prometheus-kubernetes.yml").read_text())["scrape_configs"]:
        assert job["kubernetes_sd_configs"] == [{"role": "pod"}]
        keep = job["relabel_configs"][0]
        wanted = dict(zip(keep["source_labels"], keep["regex"].split(";"), strict=True))
        (port,) = (each["name"] for each in pod["spec"]["containers"][0]["ports"] if each["containerPort"] == HTTP_PORT)
        assert wanted == {
            f"__meta_kubernetes_pod_label_{re.sub('[^a-z]', '_', label)}": value
            for label, value in pod["metadata"]["labels"].items()
        } | {"__meta_kubernetes_pod_container_port_name": port}


@pytest.mark.parametrize("rules", ["recording", "alerts"])
def test_promtool_has_no_complaint_about_the_rules(rules: str) -> None:
    checked = promtool("check", "rules", RULES / f"{rules}.yml")
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_alert_does_what_its_tests_say(path: Path) -> None:
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_recorded_is_what_was_reckoned_by_hand() -> None:
    done = promtool("test", "rules", TESTS_OF_RECORDED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_recording_rule_has_an_expected_value() -> None:
    stories = yaml.safe_load(TESTS_OF_RECORDED.read_text())["tests"]
    checks = [check for story in stories for check in story["promql_expr_test"] if check.get("exp_samples")]
    expected = {name for check in checks for name in find_uses(check["expr"])}
    assert expected == {rule["record"] for rule in RECORDED}


def test_a_rule_that_does_something_else_fails_its_tests(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests").mkdir()
    for rules in RULES.glob("*.yml"):
        (tmp_path / "rules" / rules.name).write_text(rules.read_text().replace("> 0.98", "> 0.97"))
    copy = tmp_path / "tests" / "memory.yml"
    copy.write_text((FOLDER / "tests" / "RankscopeGpuMemoryNearlyFull.yml").read_text())
    done = promtool("test", "rules", copy)
    assert done.returncode == 1
    assert "Just below: 78.3 GB." in done.stdout + done.stderr


def test_alerts_recommend_what_the_list_of_nodes_does() -> None:
    texts = [" ".join(rule["annotations"]["description"].split()) for rule in ALERTS if "exclude-file" in str(rule)]
    assert len(texts) == 3
    for text in texts:
        assert f"(rankscope_node_held_up_low_ratio{{cluster=%q, node=%q}}) >= {RATIO_MIN}" in text
        assert f"(rankscope_node_runs_held_up{{cluster=%q, node=%q}}) >= {RUNS_MIN}" in text


def test_alert_about_a_hang_blames_nodes_as_the_list_does() -> None:
    (rule,) = [rule for rule in ALERTS if rule["alert"] == "RankscopeRunStalled"]
    (causes,) = re.findall(r'cause!~\\"([^"]*deadlock[^"]*)\\"', rule["annotations"]["description"])
    assert set(causes.split("|")) == PAUSES | OF_SCRIPTS


# -- every alert has its tests and its page ---------------------------------------------------------------------------


def test_each_alert_has_a_file_of_tests_and_each_file_an_alert() -> None:
    assert [path.stem for path in TESTS] == NAMES


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_each_alert_has_its_four_tests(path: Path) -> None:
    stories = yaml.safe_load(path.read_text())["tests"]
    checks = {story["name"]: [fires(check) for check in story["alert_rule_test"]] for story in stories}
    assert any("False, True, False" in str(cases) for cases in checks.values()), "none fires and resolves"
    below = [cases for name, cases in checks.items() if name.startswith("Just below: ")]
    assert below, "none just below"
    assert not any(map(any, below))
    without_data = [checks[story["name"]] for story in stories if "input_series" not in story]
    assert without_data, "none without data"
    assert not any(map(any, without_data))
    assert {check["alertname"] for story in stories for check in story["alert_rule_test"]} == {path.stem}


@pytest.mark.parametrize("path", [*TESTS, TESTS_OF_RECORDED], ids=lambda path: path.stem)
def test_the_series_of_the_tests_are_those_of_the_catalogue(path: Path) -> None:
    known = find_catalog_labels()
    for story in yaml.safe_load(path.read_text())["tests"]:
        for each in story.get("input_series", ()):
            ((name, labels),) = find_uses(each["series"]).items()
            assert labels | {CLUSTER} == known[name], each["series"]


def find_alerted() -> set[str]:
    """Return the metrics that alerts read, also through recorded series."""
    recorded = {rule["record"]: rule["expr"] for rule in RECORDED}
    waiting, found = [rule["expr"] for rule in ALERTS], set[str]()
    while waiting:
        new = find_uses(waiting.pop()).keys() - found
        found |= new
        waiting += [recorded[name] for name in new if name in recorded]
    return found


def test_each_state_of_0_or_1_has_an_alert_or_a_reason() -> None:
    states = {measure.name for measure in CATALOG if measure.kind == "gauge" and IS_STATE.match(measure.help)}
    assert "rankscope_store_writable" in states
    assert states - find_alerted() == STATES_WITHOUT_ALERT.keys()


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    assert sorted(page.stem for page in RUNBOOKS.glob("Rankscope*.md")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_it_means_how_to_check_and_what_to_do(name: str) -> None:
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["What it means", "How to check", "What to do"]


@pytest.mark.parametrize("name", NAMES)
def test_the_queries_on_the_page_name_what_there_is(name: str) -> None:
    known = find_known()
    for query in re.findall(r"^```promql\n(.*?)^```", (RUNBOOKS / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL):
        find_labels(query, known)


def test_queries_for_people_separate_clusters_as_rules_do() -> None:
    pages = {page.name: page.read_text() for page in (RUNBOOKS.parent).glob("**/*.md")}
    groupings = {name: re.findall(r"\bby \(([^)]*\brun\b[^)]*)\)", text) for name, text in pages.items()}
    assert sum(map(len, groupings.values())) >= 3
    without = {
        name: found for name, all_ in groupings.items() if (found := [one for one in all_ if "cluster" not in one])
    }
    assert without == {}


# -- the text of a rule ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_labeled_for_routing_and_points_at_its_page(rule: Rule) -> None:
    labels = rule["labels"]
    assert labels.keys() == {"severity", "level", "role"}
    assert (labels["severity"] in SEVERITIES, labels["level"] in LEVELS, labels["role"] in ROLES) == (True, True, True)
    assert rule["annotations"]["runbook_url"] == RUNBOOK.format(rule["alert"])
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_the_message_says_rank_node_cause_and_cost(rule: Rule) -> None:
    description = rule["annotations"]["description"]
    for what in (r"\brank", r"\bnode", r"\b[Cc]ause", r"\bCost: "):
        assert re.search(what, description), what


@pytest.mark.parametrize("rule", [*RECORDED, *ALERTS], ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_names_what_there_is(rule: Rule) -> None:
    labels = find_labels(rule["expr"], find_known())
    if "record" in rule:
        level = rule["record"].split(":")[0]
        assert level in labels
        assert labels.isdisjoint({"job", "instance"}), "a run is one, whoever scrapes it"
        assert CLUSTER in labels, "a run of the same name in another cluster is another one"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_message_asks_for_what_there_is(rule: Rule) -> None:
    known, templates = find_known(), " ".join(rule["annotations"].values())
    labels = find_labels(rule["expr"], known) | rule["labels"].keys()
    assert set(re.findall(r"\$labels\.(\w+)", templates)) <= labels
    for query in find_queries(templates):
        find_labels(query, known)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_and_its_message_are_of_one_cluster(rule: Rule) -> None:
    assert CLUSTER in find_labels(rule["expr"], find_known())
    for query in find_queries(rule["annotations"]["description"]):
        assert all(CLUSTER in labels for labels in find_uses(query).values()), query


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_the_labels_of_an_alert_do_not_change_while_it_lasts(rule: Rule) -> None:
    # With one of these labels a new cause, or one more rank, would end the alert and begin another, `for` and all.
    assert find_labels(rule["expr"], find_known()).isdisjoint({"cause", "subject", "reason", "job"})


def test_a_rule_with_a_misspelt_name_would_be_found() -> None:
    with pytest.raises(PromqlError, match="no metric 'rankscope_gpu_xid_errors'"):
        find_labels("increase(rankscope_gpu_xid_errors[5m])", find_known())


def test_few_alerts_look_at_every_rank() -> None:
    known = find_catalog_labels()
    per_rank = {
        "rankscope_finding_left_seconds",
        "rankscope_finding_open",
        "rankscope_finding_slowdown_ratio",
        "rankscope_rank_missing",
    }
    dear = [
        rule["alert"]
        for rule in ALERTS
        if any("rank" in known.get(name, ()) for name in find_uses(rule["expr"]).keys() - per_rank)
    ]
    assert len(dear) <= COST_MAX, dear
