"""The Kubernetes manifests and the images: rendered, held against the schemas, and against each other.

What no schema here knows (PyTorchJob, ServiceMonitor and PrometheusRule are not Kubernetes' own kinds) is read as far
as rankscope means something in it.
"""

import importlib.metadata
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from rankscope.agent.config import read_config as read_agent_config
from rankscope.collector.config import CollectorConfig
from rankscope.collector.config import read_config as read_collector_config
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
DOCKER = ROOT / "deploy" / "docker"
KUSTOMIZATIONS = sorted(path.parent.name for path in K8S.glob("*/kustomization.yaml"))
NOT_KUBERNETES = ("kubeflow.org/", "monitoring.coreos.com/")
KUBERNETES = "1.31"

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl (kubernetes-client)")
Document = dict[str, Any]


def render(name: str) -> list[Document]:
    """What `kubectl apply -k` would apply."""
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
    """The description of every pod in them."""
    for document in documents:
        if document["kind"] in {"StatefulSet", "DaemonSet", "Job"}:
            yield document["spec"]["template"]["spec"]


@needs_kubectl
@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_kubernetes_would_take_what_is_rendered(name: str) -> None:
    documents = render(name)
    assert documents
    for document in documents:
        if not document["apiVersion"].startswith(NOT_KUBERNETES):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        if document["kind"] != "Namespace":
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


@needs_kubectl
@pytest.mark.parametrize("name", [name for name in KUSTOMIZATIONS if name != "monitoring"])
def test_our_pods_may_do_as_little_as_pods_can(name: str) -> None:
    for pod in find_pods(render(name)):
        assert pod["automountServiceAccountToken"] is False
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


@needs_kubectl
def test_collector_of_the_cluster_finds_what_its_configuration_names(tmp_path: Path) -> None:
    documents = render("collector")
    config = read_cluster_config(documents, tmp_path)
    (pod,) = find_pods(documents)
    (container,) = pod["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(Path(config.store).parent), "/etc/rankscope/keys", container["args"][2]} <= mounts
    secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    keys = {f"/etc/rankscope/keys/{item['path']}" for secret in secrets for item in secret["items"]}
    assert {config.key_file, f"{config.allowed_keys}/agent.pub"} <= keys
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.listen.endswith(f":{ports['agents']}")
    assert config.http_listen.endswith(f":{ports['http']}")


@needs_kubectl
def test_service_policy_and_budget_mean_the_pods_of_the_collector() -> None:
    documents = render("collector")
    labels = find(documents, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert find(documents, "Service")["spec"]["selector"] == labels
    assert find(documents, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert find(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels


@needs_kubectl
def test_agents_of_the_cluster_are_told_the_address_of_its_collector_and_may_reach_it() -> None:
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


def test_image_of_the_collector_is_of_a_named_release_and_not_run_as_root() -> None:
    collector = (DOCKER / "Dockerfile.collector").read_text()
    assert "\nUSER 10001:10001\n" in collector
    assert "ARG PYTHON=python:3.12.8-slim-bookworm\n" in collector


@pytest.mark.parametrize("name", ["Dockerfile.collector", "Dockerfile.training"])
def test_images_are_made_from_files_that_the_builder_gets(name: str) -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in (DOCKER / name).read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert source in sent or (source.startswith("dist/") and "dist/*.whl" in sent), source


def test_image_holds_each_dependency_of_the_package_at_one_release() -> None:
    pinned = {
        line.partition("==")[0]
        for line in (DOCKER / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    asked = [Requirement(text) for text in importlib.metadata.requires("rankscope") or ()]
    needed = {one.name for one in asked if one.marker is None or one.marker.evaluate({"python_version": "3.12"})}
    assert needed <= pinned
