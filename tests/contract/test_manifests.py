"""Check the Kubernetes manifests, the images and the compose file: rendered, against schemas and against each other.

Kinds without a schema here (PyTorchJob, ServiceMonitor and PrometheusRule are not Kubernetes' own) are checked as far
as rankscope depends on them.
"""

import importlib.metadata
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from rankscope.agent.config import read_config as read_agent_config
from rankscope.collector.commands.main import build_parser
from rankscope.collector.config import CollectorConfig
from rankscope.collector.config import read_config as read_collector_config
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
DOCKER = ROOT / "deploy" / "docker"
KUSTOMIZATIONS = sorted(path.parent.name for path in K8S.glob("*/kustomization.yaml"))
NOT_KUBERNETES = ("kubeflow.org/", "monitoring.coreos.com/")
KUBERNETES = "1.31"
HTTP_PORT = 18491

Document = dict[str, Any]


def render(name: str) -> list[Document]:
    """Return the documents that `kubectl apply -k` would apply."""
    command = [find_program("kubectl"), "kustomize", str(K8S / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def read_all(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text()))


def find(documents: list[Document], kind: str) -> Document:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def find_pods(documents: list[Document]) -> Iterator[Document]:
    """Yield the description of every pod in them."""
    for document in documents:
        if document["kind"] in {"StatefulSet", "DaemonSet", "Job"}:
            yield document["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_kubernetes_would_take_what_is_rendered(name: str) -> None:
    documents = render(name)
    assert documents
    for document in documents:
        if not document["apiVersion"].startswith(NOT_KUBERNETES):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        if document["kind"] not in {"Namespace", "ClusterRoleBinding"}:
            assert document["metadata"]["namespace"] == "rankscope"


@pytest.mark.parametrize("path", sorted((K8S / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_kubernetes_would_take_the_examples(path: Path) -> None:
    for document in read_all(path):
        if document["kind"] == "PyTorchJob":
            template = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
            document = {  # noqa: PLW2901 - its pods, as a kind that Kubernetes knows
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "worker"},
                "template": template,
            }
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", [name for name in KUSTOMIZATIONS if name != "monitoring"])
def test_our_pods_may_do_as_little_as_pods_can(name: str) -> None:
    for pod in find_pods(render(name)):
        # Only the one that writes a condition of its node needs the API of Kubernetes.
        assert pod.get("automountServiceAccountToken") is (None if name == "node-condition" else False)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"limits", "requests"} <= container["resources"].keys()


def read_cluster_config(documents: list[Document], tmp_path: Path) -> CollectorConfig:
    file = tmp_path / "collector.toml"
    file.write_text(find(documents, "ConfigMap")["data"]["collector.toml"])
    return read_collector_config({}, file_name=str(file))


def test_collector_finds_what_its_configuration_names(tmp_path: Path) -> None:
    documents = render("collector")
    config = read_cluster_config(documents, tmp_path)
    (pod,) = find_pods(documents)
    (container,) = pod["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(Path(config.store).parent), "/etc/rankscope/keys", container["args"][2]} <= mounts
    (projected,) = [volume["projected"] for volume in pod["volumes"] if "projected" in volume]
    secrets = [source["secret"] for source in projected["sources"] if not source["secret"].get("optional")]
    keys = {f"/etc/rankscope/keys/{item['path']}" for secret in secrets for item in secret["items"]}
    assert {config.key_file, f"{config.allowed_keys}/agent.pub"} <= keys
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.listen.endswith(f":{ports['agents']}")
    assert config.http_listen.endswith(f":{ports['http']}")


def test_service_policy_and_budget_select_the_collector() -> None:
    documents = render("collector")
    labels = find(documents, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert find(documents, "Service")["spec"]["selector"] == labels
    assert find(documents, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert find(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels


def test_agents_have_the_collectors_address_and_may_reach_it() -> None:
    (agent,) = read_all(K8S / "examples" / "agent.yaml")
    documents = render("collector")
    service = find(documents, "Service")
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    port = next(port["port"] for port in service["spec"]["ports"] if port["name"] == "agents")
    settings = {key: value for key, value in agent["data"].items() if key != "RANKSCOPE"}
    assert read_agent_config(settings).collector == f"tcp://{name}.{namespace}.svc:{port}"
    (job,) = read_all(K8S / "examples" / "pytorchjob.yaml")
    worn = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    (rule,) = [rule for rule in find(documents, "NetworkPolicy")["spec"]["ingress"] if rule["ports"][0]["port"] == port]
    asked = rule["from"][0]["podSelector"]["matchLabels"]
    assert asked.items() <= worn.items()


def test_operator_finds_targets_and_rules_by_one_label() -> None:
    documents = render("monitoring")
    assert [document["kind"] for document in documents] == ["PrometheusRule", "ServiceMonitor"]
    # Label that the chart kube-prometheus-stack selects if it is installed under its own name.
    assert {document["metadata"]["labels"]["release"] for document in documents} == {"kube-prometheus-stack"}
    monitored = find(documents, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= find(render("collector"), "Service")["metadata"]["labels"].items()


def test_rules_of_the_cluster_are_those_of_prometheus() -> None:
    done = runpy.run_path(str(K8S / "rules.py"))
    assert (K8S / "monitoring" / "prometheusrule.yaml").read_text() == done["render"]()


def test_compose_prometheus_differs_only_in_its_addresses() -> None:
    ours = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    theirs = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    addresses = {"127.0.0.1:18491": "collector:18491", "127.0.0.1:9093": "alertmanager:9093"}
    for address, name in addresses.items():
        ours = ours.replace(address, name)
    assert theirs == yaml.safe_load(ours)
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    assert {name.partition(":")[0] for name in addresses.values()} <= services.keys()


def test_relay_starts_with_existing_options_and_mounted_keys() -> None:
    documents = render("relay")
    (pod,) = find_pods(documents)
    (container,) = pod["containers"]
    options = build_parser().parse_args(container["args"])
    (keys,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    mounted = {f"/etc/rankscope/keys/{item['path']}" for item in keys["items"]}
    assert {options.key_file, options.collector_key_file, f"{options.allowed_keys}/agent.pub"} <= mounted
    port = container["ports"][0]["containerPort"]
    assert options.listen.endswith(f":{port}")
    (train,) = read_all(K8S / "examples" / "relayed.yaml")
    settings = {one["name"]: one.get("value") for one in train["spec"]["containers"][0]["env"]}
    assert settings["RANKSCOPE_COLLECTOR"] == f"tcp://$(HOST_IP):{container['ports'][0]['hostPort']}"
    worn = find(documents, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert find(documents, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= worn.items()
    assert worn["rankscope/agent"] == "true", "the collector's policy lets in who wears this"


def test_node_condition_runs_a_plugin_that_is_mounted() -> None:
    documents = render("node-condition")
    (pod,) = find_pods(documents)
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (plugin,) = [volume["configMap"] for volume in pod["volumes"] if "configMap" in volume]
    files = find(documents, "ConfigMap")
    assert (plugin["name"], plugin["defaultMode"]) == (files["metadata"]["name"], 0o555)
    assert f"--config.custom-plugin-monitor={mounts['plugin']}/rankscope.json" in container["command"]
    config = json.loads(files["data"]["rankscope.json"])
    (rule,) = config["rules"]
    assert rule["path"] == f"{mounts['plugin']}/check-node.sh"
    assert "check-node.sh" in files["data"]
    # As node-problem-detector validates: a rule of a condition has a default for it, and no longer time than all.
    assert (rule["type"], [rule["condition"]]) == ("permanent", [one["type"] for one in config["conditions"]])
    assert int(rule["timeout"][:-1]) <= int(config["pluginConfig"]["timeout"][:-1])


def test_node_condition_may_reach_the_collector_and_write_its_node() -> None:
    documents, collector = render("node-condition"), render("collector")
    (pod,) = find_pods(documents)
    settings = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    service = find(collector, "Service")["metadata"]
    assert settings["RANKSCOPE_HTTP"] == f"{service['name']}.{service['namespace']}.svc:{HTTP_PORT}"
    worn = find(documents, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    (rule,) = [
        one for one in find(collector, "NetworkPolicy")["spec"]["ingress"] if one["ports"][0]["port"] == HTTP_PORT
    ]
    assert worn in [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    (subject,) = find(documents, "ClusterRoleBinding")["subjects"]
    account = find(documents, "ServiceAccount")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert pod["serviceAccountName"] == account["name"]


def test_compose_file_follows_its_schema_and_mounts_exist() -> None:
    path = DOCKER / "compose.yaml"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    made_by_hand = {"./keys"}
    for service in yaml.safe_load(path.read_text())["services"].values():
        for mount in service["volumes"]:
            source = mount.partition(":")[0]
            if source.startswith(".") and source not in made_by_hand:
                assert (DOCKER / source).exists(), source


def test_images_are_of_named_releases_and_not_run_as_root() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    tags = {name: service["image"].partition(":")[2] for name, service in services.items()}
    assert all(tag and tag != "latest" for tag in tags.values()), tags
    collector = (DOCKER / "Dockerfile.collector").read_text()
    assert "\nUSER 10001:10001\n" in collector
    assert "ARG PYTHON=python:3.12.8-slim-bookworm\n" in collector


def test_image_pins_each_dependency_of_the_package() -> None:
    pinned = {
        line.partition("==")[0]
        for line in (DOCKER / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    asked = [Requirement(text) for text in importlib.metadata.requires("rankscope") or ()]
    needed = {one.name for one in asked if one.marker is None or one.marker.evaluate({"python_version": "3.12"})}
    assert needed <= pinned
