"""Check the Helm chart as helm renders it: against the schemas of Kubernetes, and against deploy/k8s.

The manifests of deploy/k8s are the truth for what the chart gives without values; rules and dashboards have one source.
"""

import copy
import json
import re
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.release import build_charts
from rankscope.agent.config import read_config as read_agent_config
from rankscope.collector.config import CollectorConfig
from rankscope.collector.config import read_config as read_collector_config
from tests.contract.test_manifests import KUBERNETES, ROOT, Document, find, read_all, render
from tests.helm import find_helm
from tests.programs import find_program

CHART = ROOT / "deploy" / "helm" / "rankscope"
OURS = "app.kubernetes.io/instance"
"""The label by which the chart tells its releases apart; deploy/k8s has none of them."""
EVERYTHING = {
    "monitor.enabled": "true", "rules.enabled": "true", "dashboards.enabled": "true", "relay.enabled": "true",
    "ingress.enabled": "true", "ingress.host": "rankscope.example.com", "http.tokenSecret": "rankscope-http-token",
    "http.controlTokenSecret": "rankscope-control-token", "http.tlsSecret": "rankscope-tls",
    "agent.namespaces": "{training,research}", "storage.className": "fast", "imagePullSecrets[0].name": "registry",
    "podAnnotations.team": "infra", "nodeSelector.disk": "local", "config.history_kept_s": "604800",
    "extraVolumes[0].name": "hook", "extraVolumeMounts[0].name": "hook", "extraVolumeMounts[0].mountPath": "/hook",
    "extraEnv[0].name": "OTEL_EXPORTER_OTLP_PROTOCOL", "extraEnv[0].value": "grpc",
}  # fmt: skip


OPTIONS: dict[str, dict[str, str]] = {
    "token": {"http.tokenSecret": "token"}, "control token": {"http.controlTokenSecret": "control"},
    "TLS": {"http.tlsSecret": "certificate"}, "no storage": {"storage.enabled": "false"},
    "no policy": {"networkPolicy.enabled": "false"}, "ingress TLS": {"ingress.tlsSecret": "of-the-ingress"},
    "ingress": {"ingress.enabled": "true", "ingress.host": "rankscope.example.com", "ingress.withoutToken": "true"},
    "monitor": {"monitor.enabled": "true"}, "pod monitor": {"monitor.enabled": "true", "monitor.kind": "PodMonitor"},
    "relay": {"relay.enabled": "true"}, "rules": {"rules.enabled": "true"},
}  # fmt: skip
COMBINATIONS = [(name,) for name in OPTIONS] + [
    tuple(one for one in OPTIONS if one != name) for name in ("token", "TLS", "no policy", "no storage")
]
"""Each option alone, and all but one."""


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_helm(), *arguments], capture_output=True, text=True, check=False)


def helm_template(values: dict[str, str], release: str = "rankscope") -> subprocess.CompletedProcess[str]:
    options = (f"--set={name}={value}" for name, value in values.items())
    return run_helm("template", release, str(CHART), "--namespace=rankscope", *options)


@cache
def _render_chart(values: tuple[tuple[str, str], ...]) -> list[Document]:
    done = helm_template(dict(values))
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document is not None]


def render_chart(**values: str) -> list[Document]:
    """Return what `helm install` would make; `__` in a name stands for a dot."""
    return copy.deepcopy(_render_chart(tuple((name.replace("__", "."), value) for name, value in values.items())))


def render_everything() -> list[Document]:
    return copy.deepcopy(_render_chart(tuple(EVERYTHING.items())))


def without(document: Any, *names: str) -> Any:
    """Return the document without the entries of these names, anywhere in it."""
    if isinstance(document, dict):
        return {name: without(value, *names) for name, value in document.items() if name not in names}
    return [without(value, *names) for value in document] if isinstance(document, list) else document


def test_helm_has_no_complaint_about_the_chart() -> None:
    done = run_helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("render_it", [render_chart, render_everything])
def test_kubernetes_would_take_what_the_chart_gives(render_it: Any) -> None:
    for document in render_it():
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "rankscope"


def compared(document: Document) -> Any:
    """Return the specification without what only the chart has, and without the hash in Kustomize's name of the map."""
    spec = without(document.get("spec"), OURS, "annotations", "imagePullPolicy", "scheme")
    return json.loads(re.sub(r'"rankscope-collector-[a-z0-9]{10}"', '"rankscope-collector"', json.dumps(spec)))


def test_chart_without_values_is_the_collector_of_the_manifests() -> None:
    chart, manifests = render_chart(), render("collector")
    kinds = {document["kind"] for document in manifests} - {"Namespace"}
    assert kinds == {document["kind"] for document in chart}
    for kind in kinds:
        ours, theirs = find(chart, kind), find(manifests, kind)
        assert compared(ours) == compared(theirs), kind
        assert compared(ours) is not None or kind in {"ConfigMap", "ServiceAccount"}
        assert theirs["metadata"]["name"].startswith(ours["metadata"]["name"])
    read = [find(documents, "ConfigMap")["data"]["collector.toml"] for documents in (chart, manifests)]
    assert read[0].strip() == read[1].strip()


def test_relay_of_the_chart_is_that_of_the_manifests() -> None:
    chart, manifests = render_chart(relay__enabled="true"), render("relay")
    for kind in ("DaemonSet", "NetworkPolicy"):
        (ours,) = [one for one in chart if (one["kind"], one["metadata"]["name"]) == (kind, "rankscope-relay")]
        assert compared(ours) == compared(find(manifests, kind))
    (projected,) = [
        volume["projected"]["sources"]
        for volume in find(chart, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
        if "projected" in volume
    ]
    assert [source["secret"].get("optional") for source in projected] == [None, False], "the relay's key is needed"


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_prometheus_scrapes_what_it_does_by_the_manifests(kind: str) -> None:
    monitor = find(render_chart(monitor__enabled="true", monitor__kind=kind), kind)["spec"]
    theirs = find(render("monitoring"), "ServiceMonitor")["spec"]
    name = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}[kind]
    assert monitor[name] == theirs["endpoints"]
    collector = find(render_chart(), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"] == collector


def test_scrapes_send_the_token_and_check_the_certificate() -> None:
    for endpoint in find(render_everything(), "ServiceMonitor")["spec"]["endpoints"]:
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"] == {
            "ca": {"secret": {"name": "rankscope-tls", "key": "ca.crt"}},
            "serverName": "rankscope-collector.rankscope.svc",
        }
        assert endpoint["authorization"]["credentials"] == {"name": "rankscope-http-token", "key": "token"}


def test_series_have_the_label_of_the_cluster() -> None:
    monitor = find(render_chart(monitor__enabled="true", monitor__cluster="east"), "ServiceMonitor")
    for endpoint in monitor["spec"]["endpoints"]:
        assert {"targetLabel": "cluster", "replacement": "east"} in endpoint["relabelings"]


def test_rules_and_dashboards_are_the_ones_of_the_repository() -> None:
    documents = render_everything()
    assert find(documents, "PrometheusRule")["spec"] == find(render("monitoring"), "PrometheusRule")["spec"]
    given = {
        name: text
        for document in documents
        if document["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in document["data"].items()
    }
    files = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
    texts = {f"rankscope-{file.name}": file.read_text() for file in files}
    assert all(text.count('"http://127.0.0.1:18491"') == 1 for text in texts.values()), "the address of the live page"
    there = "http://rankscope.example.com"
    assert given == {name: text.replace("http://127.0.0.1:18491", there) for name, text in texts.items()}
    # No second copy: the folders of the chart are links to those.
    assert (CHART / "files" / "dashboards").resolve() == files[0].parent
    assert (CHART / "files" / "rules").resolve() == ROOT / "deploy" / "prometheus" / "rules"


def show(commit_path: str) -> str:
    """Return a file of the last commit, or the names in a folder of it, one a line."""
    shown = ["show"] if Path(commit_path).suffix else ["ls-tree", "--name-only"]
    command = ["git", *shown, f"HEAD:{commit_path}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of a release, made of the last commit."""
    (chart,) = build_charts("HEAD", tmp_path_factory.mktemp("charts"), 1_700_000_000)
    return chart


def test_released_chart_has_rules_and_dashboards_as_files(packed: Path) -> None:
    with tarfile.open(packed) as archive:
        assert [one.name for one in archive if not (one.isfile() or one.isdir())] == []
        for inside, source in (("rules", "deploy/prometheus/rules"), ("dashboards", "deploy/grafana/dashboards")):
            names = show(source).split()
            assert names
            for name in names:
                member = archive.extractfile(f"rankscope/files/{inside}/{name}")
                assert member is not None
                assert member.read().decode() == show(f"{source}/{name}")


def test_released_chart_gives_alerts_and_dashboards(packed: Path) -> None:
    done = run_helm("template", "rankscope", str(packed), "--set=rules.enabled=true,dashboards.enabled=true")
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    rules = [
        yaml.safe_load(show(f"deploy/prometheus/rules/{name}")) for name in show("deploy/prometheus/rules").split()
    ]
    groups = [group["name"] for one in rules for group in one["groups"]]
    assert [group["name"] for group in find(documents, "PrometheusRule")["spec"]["groups"]] == groups
    dashboards = [name for one in documents if one["kind"] == "ConfigMap" for name in one["data"] if "json" in name]
    assert dashboards == [f"rankscope-{name}" for name in show("deploy/grafana/dashboards").split()]


def read_configuration(documents: list[Document], tmp_path: Path) -> CollectorConfig:
    (text,) = [
        document["data"]["collector.toml"]
        for document in documents
        if document["kind"] == "ConfigMap" and "collector.toml" in document["data"]
    ]
    file = tmp_path / "collector.toml"
    file.write_text(text)
    return read_collector_config({}, file_name=str(file))


def test_collector_reads_settings_and_finds_secrets(tmp_path: Path) -> None:
    documents = render_everything()
    config = read_configuration(documents, tmp_path)
    assert config.history_kept_s == 604_800
    pod = find(documents, "StatefulSet")["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    files = {
        f"{mounts[volume['name']]}/{item['path']}"
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        for item in source["secret"]["items"]
    }
    named = {
        config.key_file, config.http_token_file, config.http_control_token_file, config.http_certificate_file,
        config.http_key_file, f"{config.allowed_keys}/agent.pub", f"{config.allowed_keys}/relays/relay.pub",
    }  # fmt: skip
    assert files == named


@pytest.mark.parametrize("chosen", COMBINATIONS, ids=lambda names: ", ".join(names) if len(names) == 1 else "most")
def test_options_work_alone_and_with_most_others(chosen: tuple[str, ...], tmp_path: Path) -> None:
    values = {name: value for option in chosen for name, value in OPTIONS[option].items()}
    done = helm_template(values, release="a-release-with-a-name-of-the-most-characters-of-helm")
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document is not None]
    for document in documents:
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        assert len(document["metadata"]["name"]) <= 63
    config = read_configuration(documents, tmp_path)
    pod = find(documents, "StatefulSet")["spec"]["template"]["spec"]
    mounted = [Path(mount["mountPath"]) for mount in pod["containers"][0]["volumeMounts"]]
    named = [
        config.key_file, config.store, config.http_token_file, config.http_control_token_file,
        config.http_certificate_file, config.http_key_file,
    ]  # fmt: skip
    for path in (Path(name) for name in named if name):
        assert any(folder in path.parents for folder in mounted), path
    assert bool(config.http_token_file) is ("token" in chosen)
    assert bool(config.http_control_token_file) is ("control token" in chosen)
    assert ("volumeClaimTemplates" in find(documents, "StatefulSet")["spec"]) is ("no storage" not in chosen)
    for monitor in (one["spec"] for one in documents if one["kind"] in {"ServiceMonitor", "PodMonitor"}):
        for endpoint in monitor.get("endpoints") or monitor["podMetricsEndpoints"]:
            assert endpoint.get("scheme", "http") == ("https" if "TLS" in chosen else "http")


def test_settings_keep_their_types_on_the_way_to_the_file(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "config:\n  slowdown_ratio_min: 1.5\n  history_bytes_max: 4294967296\n  runs_max: 7\n"
        '  notify_severity_min: critical\n  notify_webhook_ca_file: /etc/"two words"\n'
    )  # fmt: skip
    done = run_helm("template", "rankscope", str(CHART), f"--values={values}")
    config = read_configuration([one for one in yaml.safe_load_all(done.stdout) if one], tmp_path)
    assert (config.slowdown_ratio_min, config.history_bytes_max, config.runs_max) == (1.5, 2**32, 7)
    assert (config.notify_severity_min, config.notify_webhook_ca_file) == ("critical", '/etc/"two words"')


def test_changed_setting_restarts_the_collector() -> None:
    read = [
        find(render_chart(**values), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]
        for values in ({}, {"config__runs_max": "7"})
    ]
    assert read[0] != read[1]


def test_agents_get_the_address_of_the_release() -> None:
    documents = render_everything()
    maps = [one for one in documents if one["metadata"]["name"] == "rankscope-agent"]
    assert [one["metadata"]["namespace"] for one in maps] == ["training", "research"]
    (example,) = read_all(ROOT / "deploy" / "k8s" / "examples" / "agent.yaml")
    assert [one["data"] for one in maps] == [example["data"]] * 2
    other = yaml.safe_load_all(helm_template({"agent.namespaces": "{a}"}, release="second").stdout)
    (settings,) = [one["data"] for one in other if one and one["metadata"]["name"] == "rankscope-agent"]
    settings.pop("RANKSCOPE")
    assert read_agent_config(settings).collector == "tcp://second-rankscope-collector.rankscope.svc:18490"


def test_ingress_controllers_reach_the_port_behind_the_ingress() -> None:
    documents = render_everything()
    (policy,) = [
        one["spec"]
        for one in documents
        if (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", "rankscope-collector")
    ]
    (http,) = [rule for rule in policy["ingress"] if rule["ports"] == [{"protocol": "TCP", "port": 18491}]]
    named = [peer.get("namespaceSelector", {}).get("matchLabels") for peer in http["from"]]
    assert {"kubernetes.io/metadata.name": "ingress-nginx"} in named
    (path,) = find(documents, "Ingress")["spec"]["rules"][0]["http"]["paths"]
    service = find(documents, "Service")
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"ingress.enabled": "true", "ingress.host": "a.example.com"}, "would show every run to anyone"),
        ({"ingress.enabled": "true", "ingress.withoutToken": "true"}, "needs ingress.host"),
        ({"config.listen": "tcp://0.0.0.0:1"}, "invalid propertyName 'listen'"),
        ({"storage.sise": "1Gi"}, "additional properties 'sise' not allowed"),
        ({"keys.agents": "{}"}, "/keys/agents"),
        ({"monitor.kind": "Probe"}, "/monitor/kind"),
    ],
)
def test_mistake_in_the_values_is_refused_by_name(values: dict[str, str], reason: str) -> None:
    done = helm_template(values)
    assert done.returncode == 1
    assert reason in done.stderr


def test_every_default_value_is_in_the_schema() -> None:
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == properties.keys() - {"global"}
    for name, value in values.items():
        if properties[name].get("additionalProperties") is False:
            assert value.keys() == properties[name]["properties"].keys(), name


def test_commands_of_the_notes_make_the_secrets_that_pods_mount(tmp_path: Path) -> None:
    options = ("--namespace=ops", "--dry-run=client", "--set=relay.enabled=true")
    notes = run_helm("install", "rankscope", str(CHART), *options).stdout.partition("NOTES:\n")[2]
    commands = [line.split() for line in notes.splitlines() if line.startswith("    kubectl")]
    assert [command[3] for command in commands] == ["create", "rollout", "create", "port-forward"]
    keys = (sys.executable, "-m", "rankscope.collector", "keys", "keys")
    for more in ((), ("--relay", "relay")):
        subprocess.run([*keys, *more], cwd=tmp_path, check=True, capture_output=True)
    made = {}
    for command in (commands[0], commands[2]):
        only_shown = [find_program("kubectl"), *command[1:], "--dry-run=client", "--output=yaml"]
        done = subprocess.run(only_shown, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        secret = yaml.safe_load(done.stdout)
        made[secret["metadata"]["name"]] = secret["data"].keys()
    assert made == {
        "rankscope-collector-keys": {"collector.key", "agent.pub", "relay.pub"},
        "rankscope-agent-keys": {"agent.key", "collector.pub"},
    }


def test_chart_and_package_are_of_one_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert chart["version"] == chart["appVersion"] == version
