"""Check the Kubernetes manifests, the images and the compose file: rendered, against schemas and against each other.

Kinds without a schema here (those of job operators and of the Prometheus operator) are checked as far as rankscope
depends on them.
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
from packaging.utils import canonicalize_name

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
EXAMPLES = sorted((K8S / "examples").glob("*.yaml"))
REPORTING = ("jobset", "pytorchjob", "rayjob", "trainjob")
"""Examples of one custom object that report to the standing collector."""
TEMPLATES = {
    "PyTorchJob": "pytorchReplicaSpecs.Worker.template",
    "JobSet": "replicatedJobs[].template.spec.template",
    "TrainJob": "runtimePatches[].trainingRuntimeSpec.template.spec.replicatedJobs[].template.spec.template",
    "RayJob": "rayClusterSpec.workerGroupSpecs[].template",
}
"""Where the pods of kinds are described that are not Kubernetes' own; of a TrainJob it is a patch."""
FIELDS = {
    "TrainJob": """trainer.kubeflow.org/v1alpha1
        runtimeRef.apiGroup runtimeRef.kind runtimeRef.name trainer.image trainer.numNodes trainer.numProcPerNode
        trainer.resourcesPerNode.limits trainer.command[] trainer.env[] runtimePatches[].manager
        runtimePatches[].trainingRuntimeSpec""",
    "JobSet": """jobset.x-k8s.io/v1alpha2
        coordinator.replicatedJob coordinator.jobIndex coordinator.podIndex failurePolicy.maxRestarts
        replicatedJobs[].name replicatedJobs[].replicas replicatedJobs[]""",
    "RayJob": """ray.io/v1
        entrypoint shutdownAfterJobFinishes rayClusterSpec.headGroupSpec.rayStartParams rayClusterSpec.headGroupSpec
        rayClusterSpec.workerGroupSpecs[].groupName rayClusterSpec.workerGroupSpecs[].replicas
        rayClusterSpec.workerGroupSpecs[].minReplicas rayClusterSpec.workerGroupSpecs[].maxReplicas
        rayClusterSpec.workerGroupSpecs[].rayStartParams rayClusterSpec.workerGroupSpecs[]""",
}
"""By kind its version, and the fields that the examples use outside of templates of pods. They were checked against the
definitions in kubeflow/trainer 8c0f505 (2.3.0), kubernetes-sigs/jobset 08dfbdf and ray-project/kuberay feeaf72, all of
August 2026, with unknown fields refused.
"""
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_kubernetes_would_take_the_examples(path: Path) -> None:
    for document in read_all(path):
        if document["kind"] in TEMPLATES:
            for template in find_templates(document):
                pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template}
                kubernetes_validate.validate(pods, KUBERNETES, strict=True)
        else:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        if document["kind"] == "JobSet":
            for job in document["spec"]["replicatedJobs"]:
                whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, **job["template"]}
                kubernetes_validate.validate(whole, KUBERNETES, strict=True)


def find_templates(document: Document) -> list[Document]:
    """Return the templates of pods in a document of a kind that is not one of Kubernetes."""
    found = [document["spec"]]
    for name in TEMPLATES[document["kind"]].split("."):
        values = [each[name.removesuffix("[]")] for each in found]
        found = [one for value in values for one in value] if name.endswith("[]") else values
    return found


def find_fields(value: Any, at: str = "") -> set[str]:
    """Return the paths of all fields outside of templates of pods, without those inside of free maps."""
    if at.endswith((".template", "Params", "limits", "env[]")):
        return {at}
    if isinstance(value, list):
        return {field for each in value for field in find_fields(each, f"{at}[]")} or {at}
    if isinstance(value, dict) and value:
        return {field for name, each in value.items() for field in find_fields(each, f"{at}.{name}".lstrip("."))}
    return {at}


@pytest.mark.parametrize("name", ["trainjob", "jobset", "rayjob"])
def test_custom_kinds_use_fields_of_their_definitions(name: str) -> None:
    (document,) = read_all(K8S / "examples" / f"{name}.yaml")
    version, *fields = FIELDS[document["kind"]].split()
    assert document["apiVersion"] == version
    used = {field.partition(".template")[0] for field in find_fields(document["spec"])}
    assert used == set(fields)


@pytest.mark.parametrize("name", REPORTING)
def test_example_pods_have_label_address_keys_and_run(name: str) -> None:
    (document,) = read_all(K8S / "examples" / f"{name}.yaml")
    (agent,) = read_all(K8S / "examples" / "agent.yaml")
    template = find_templates(document)[-1]
    assert template["metadata"]["labels"]["rankscope/agent"] == "true", "the collector's policy lets in who has this"
    (container,) = template["spec"]["containers"]
    given = document["spec"]["trainer"] if name == "trainjob" else container  # sets what the runtime's container runs
    settings = {one["name"]: one.get("value", one.get("valueFrom")) for one in given["env"]}
    if name == "trainjob":
        assert agent["data"].items() <= settings.items()
    else:
        assert given["envFrom"] == [{"configMapRef": {"name": agent["metadata"]["name"]}}]
    assert {"RANKSCOPE_RUN", "RANKSCOPE_NODE"} <= settings.keys()
    (keys,) = [mount for mount in container["volumeMounts"] if mount["name"] == "rankscope-keys"]
    assert agent["data"]["RANKSCOPE_KEY_FILE"] == f"{keys['mountPath']}/agent.key"
    (volume,) = [volume["secret"] for volume in template["spec"]["volumes"] if volume["name"] == "rankscope-keys"]
    assert volume == {"secretName": "rankscope-agent-keys", "defaultMode": 0o440}
    assert template["spec"]["securityContext"]["fsGroup"] == 1000, "else the key is root's alone to read"


def test_pods_of_the_indexed_job_find_the_first_one() -> None:
    service, job = read_all(K8S / "examples" / "indexed-job.yaml")
    pod = job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert pod["subdomain"] == service["metadata"]["name"]
    command = pod["containers"][0]["command"][-1]
    assert f"--master-addr={job['metadata']['name']}-0.{pod['subdomain']} " in command
    assert f"--nnodes={job['spec']['completions']} " in command
    assert not {"RANKSCOPE_COLLECTOR"} & {one["name"] for one in pod["containers"][0]["env"]}, "rank 0 starts one"


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


def test_nvsentinel_policy_reads_the_condition_of_the_plugin() -> None:
    text = (ROOT / "docs" / "nodes.md").read_text(encoding="utf-8").partition("**NVSentinel**")[2]
    values = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert values["global"] == {"kubernetesObjectMonitor": {"enabled": True}}
    (policy,) = values["kubernetes-object-monitor"]["policies"]
    # The fields of a policy about a Node in NVSentinel's documentation of its Kubernetes object monitor.
    assert set(policy) == {"name", "enabled", "resource", "predicate", "healthEvent"}
    assert policy["resource"] == {"group": "", "version": "v1", "kind": "Node"}
    assert set(policy["healthEvent"]) == {"componentClass", "isFatal", "message", "recommendedAction", "errorCode"}
    assert policy["healthEvent"]["isFatal"] is False
    (condition,) = json.loads((K8S / "node-condition" / "rankscope.json").read_text())["conditions"]
    assert f'c.type == "{condition["type"]}" && c.status == "True"' in policy["predicate"]["expression"]
    assert policy["name"] != condition["type"]


def test_node_condition_may_reach_collector_and_write_its_node() -> None:
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
    assert "ARG PYTHON=python:3.13.12-slim-bookworm\n" in collector


def list_needed(package: str, extra: str = "") -> Iterator[str]:
    """Yield the names of what a package needs, and of all that these need in turn."""
    asked = [Requirement(text) for text in importlib.metadata.requires(package) or ()]
    for one in asked:
        if one.marker is None or one.marker.evaluate({"python_version": "3.12", "extra": extra}):
            yield canonicalize_name(one.name)
            yield from list_needed(one.name)


def test_image_pins_all_that_the_package_and_its_otlp_need() -> None:
    pinned = {
        line.partition("==")[0]
        for line in (DOCKER / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    needed = {*list_needed("rankscope", "otlp")}
    assert "grpcio" in needed
    assert needed <= pinned
