"""`make release`, `make dist`: the same commit gives the same bytes, and what comes out works where nothing else is."""

import email
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from deploy.dist import even_out
from rankscope.measure import __version__
from tests.integration.docker_builds import read_instructions
from tests.integration.environments import LONGEST_S, clean_environment, lend_torch, make_environment, run, run_pip
from tests.integration.serving import wait_for
from tests.integration.torchrun import ALONE
from tests.lowest_versions import read_lowest, render
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "traces"

pytestmark = pytest.mark.xdist_group("dist")  # one worker builds, once


def build(tree: Path, out: Path, umask: int = 0o022) -> list[Path]:
    done = run(sys.executable, tree / "deploy" / "dist.py", "--out", out, umask=umask)
    assert done.returncode == 0, done.stderr
    return sorted(out.iterdir())


def release(tree: Path, out: Path, umask: int = 0o022) -> dict[str, Path]:
    """All files of a release by what they are: their names without the version."""
    done = run(sys.executable, "-m", "deploy.release", "--out", out, cwd=tree, umask=umask)
    assert done.returncode == 0, done.stderr
    return {path.name.replace(f"-{__version__}", ""): path for path in out.iterdir()}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `make release` makes of this commit."""
    if sys.version_info < (3, 11):
        pytest.skip("the image's own pins ask for Python 3.11 or later")
    return release(ROOT, tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel and the source distribution of this commit, in this order."""
    if sys.version_info < (3, 11):
        return build(ROOT, tmp_path_factory.mktemp("dist"))
    files = request.getfixturevalue("released")
    return [files["rankscope-py3-none-any.whl"], files["rankscope.tar.gz"]]


@pytest.fixture(scope="module")
def materials(released: dict[str, Path]) -> dict[str, Any]:
    """The bill of materials."""
    found: dict[str, Any] = json.loads(released["rankscope.cdx.json"].read_text(encoding="utf-8"))
    return found


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def empty(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, what it asks for, and nothing else."""
    return make_environment(built[0], tmp_path_factory.mktemp("empty"))


def test_checksums_are_of_all_other_files(released: dict[str, Path]) -> None:
    sums = released["SHA256SUMS"]
    done = run(find_program("sha256sum"), "--check", "--strict", sums.name, cwd=sums.parent)
    assert done.returncode == 0, done.stderr
    checked = {line.removesuffix(": OK") for line in done.stdout.splitlines()}
    assert checked == {path.name for path in released.values()} - {"SHA256SUMS"}
    kinds = {"rankscope-py3-none-any.whl", "rankscope.tar.gz", "rankscope-docker-context.tar.gz", "rankscope.cdx.json"}
    assert kinds <= set(released)


def test_commit_gives_equal_bytes_without_uncommitted_files(released: dict[str, Path], tmp_path: Path) -> None:
    done = run("git", "clone", "--quiet", "--no-hardlinks", ROOT, tmp_path / "clone")
    assert done.returncode == 0, done.stderr
    (tmp_path / "clone" / "measure" / "left_lying.py").write_text("")
    again = release(tmp_path / "clone", tmp_path / "out", umask=0o077)
    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in released.items()
    }


def test_bill_of_materials_has_what_the_image_installs(materials: dict[str, Any]) -> None:
    text = (ROOT / "deploy" / "docker" / "requirements.txt").read_text(encoding="utf-8")
    pinned = {line for line in text.splitlines() if line and not line.startswith("#")}
    assert {f"{normalize(one['name'])}=={one['version']}" for one in materials["components"]} == pinned
    assert [one["name"] for one in materials["components"] if not one["purl"].startswith("pkg:pypi/")] == []


def test_bill_of_materials_has_a_license_of_each(materials: dict[str, Any]) -> None:
    parts = [*materials["components"], materials["metadata"]["component"]]
    named = {
        normalize(part["name"]): [
            entry.get("expression") or entry["license"].get("id") or entry["license"]["name"]
            for entry in part.get("licenses", ())
        ]
        for part in parts
    }
    # Its metadata has free text in the field License, and neither an expression nor a classifier: so it has none here.
    undeclared = ["protobuf"]
    assert [name for name, licenses in named.items() if not all(licenses) or not licenses] == undeclared
    assert named["rankscope"] == ["Apache-2.0"]
    assert named["pyzmq"] == ["BSD-3-Clause"]


def test_bill_of_materials_names_what_the_wheel_requires(built: list[Path], materials: dict[str, Any]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        metadata = email.message_from_bytes(wheel.read(f"rankscope-{__version__}.dist-info/METADATA"))
    asked = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    required = {normalize(one.name) for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})}
    root = materials["metadata"]["component"]
    assert (root["name"], root["version"]) == ("rankscope", __version__)
    (uses,) = [one["dependsOn"] for one in materials["dependencies"] if one["ref"] == root["bom-ref"]]
    assert required <= {normalize(ref.partition("==")[0]) for ref in uses}


def test_bill_of_materials_says_nothing_of_who_made_it(materials: dict[str, Any]) -> None:
    committed_s = int(run("git", "-C", ROOT, "log", "-1", "--format=%ct").stdout)
    assert datetime.fromisoformat(materials["metadata"]["timestamp"]).timestamp() == committed_s
    text = json.dumps(materials)
    assert "file:" not in text
    assert "/tmp" not in text  # noqa: S108 - where it was made


def test_docker_context_has_what_the_dockerfiles_copy(released: dict[str, Path]) -> None:
    with (
        tarfile.open(released["rankscope-docker-context.tar.gz"]) as archive,
        tarfile.open(released["rankscope.tar.gz"]) as sdist,
    ):
        inside, top = archive.getnames(), f"rankscope-{__version__}"
        assert sorted(f"{top}/{name}" for name in inside) == sorted(set(sdist.getnames()) - {top})
        files = [name for name in inside if name.startswith("deploy/docker/Dockerfile.")]
    assert len(files) == 2
    for name in files:
        copied = [rest.split() for word, rest in read_instructions(ROOT / name) if word == "COPY"]
        sources = [one for words in copied if not words[0].startswith("--") for one in words[:-1] if one != "."]
        assert [one for one in sources if one not in inside] == []


def test_files_that_the_chart_links_to_are_in_both(built: list[Path]) -> None:
    files = {f"rules/{one.name}" for one in (ROOT / "deploy" / "prometheus" / "rules").iterdir()}
    files |= {f"dashboards/{one.name}" for one in (ROOT / "deploy" / "grafana" / "dashboards").iterdir()}
    with zipfile.ZipFile(built[0]) as wheel, tarfile.open(built[1]) as sdist:
        for name in (f"deploy/helm/rankscope/files/{one}" for one in files):
            assert wheel.getinfo(f"rankscope/shipped/{name}").file_size > 0
            assert sdist.getmember(f"rankscope-{__version__}/{name}").isfile()


def test_chart_is_packed_as_helm_does(tmp_path: Path) -> None:
    clone, out = tmp_path / "clone", tmp_path / "out"
    assert run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone).returncode == 0
    shutil.rmtree(clone / "deploy" / "helm", ignore_errors=True)
    chart = clone / "deploy" / "helm" / "tried"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: tried\nversion: 1.2.3\nappVersion: '9'\n")
    (chart / "templates" / "service.yaml").write_text("kind: Service\n")
    git = ["git", "-C", str(clone), "-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    assert run(*git, "add", "--all", "deploy").returncode == 0
    assert run(*git, "commit", "--quiet", "--message", "a chart").returncode == 0
    out.mkdir()
    program = (
        "import sys, pathlib, deploy.release as r; r.build_charts('HEAD', pathlib.Path(sys.argv[1]), 1_700_000_000)"
    )
    done = run(sys.executable, "-c", program, out, cwd=clone)
    assert done.returncode == 0, done.stderr
    (packed,) = out.iterdir()
    assert packed.name == "tried-1.2.3.tgz"
    with tarfile.open(packed) as archive:
        files = {one.name: one for one in archive.getmembers() if one.isfile()}
        assert sorted(files) == ["tried/Chart.yaml", "tried/templates/service.yaml"]
        assert {one.mtime for one in files.values()} == {1_700_000_000}
        member = archive.extractfile("tried/templates/service.yaml")
        assert member is not None
        assert member.read() == b"kind: Service\n"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_link_is_not_packed_without_what_it_points_to(kind: bytes) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        link = tarfile.TarInfo("chart/rules")
        link.type, link.linkname = kind, "../rules"
        archive.addfile(link)
    packed.seek(0)
    with (
        tarfile.open(fileobj=packed) as archive,
        pytest.raises(SystemExit, match=r"chart/rules is a link to \.\./rules"),
    ):
        even_out(archive, 1_700_000_000)


@pytest.mark.parametrize("module", ["deploy.dist", "deploy.release"])
def test_unknown_commit_is_said_and_builds_nothing(module: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", module, "--out", tmp_path, "--commit", "no-such-commit", cwd=ROOT)
    assert done.returncode == 1
    assert "no-such-commit" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wheel_works_without_torch(empty: Path, tmp_path: Path) -> None:
    environment = clean_environment()
    assert run(empty / "python", "-c", "import torch", env=environment).returncode != 0
    assert run(empty / "rankscope", "--version", env=environment).stdout == f"rankscope {__version__}\n"
    trace = next(TRACE.rglob("*.json*"))
    shutil.copy(trace, tmp_path)
    result = tmp_path / "result.json"
    done = run(empty / "rankscope", "analyze", tmp_path, "--json-file", result, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(result.read_text())["ranks"]) == 1


def test_wheel_serves_without_torch(empty: Path, tmp_path: Path) -> None:
    command = [str(empty / "rankscope"), "serve", "--listen", "tcp://127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    options = {"stdout": subprocess.PIPE, "text": True, "env": clean_environment(), "cwd": tmp_path}
    with subprocess.Popen([*command, "--announce"], **options) as server:  # type: ignore[call-overload]
        try:
            announced = json.loads(server.stdout.readline())
            assert announced["endpoint"].startswith("tcp://127.0.0.1:")
            url = announced["metrics_url"].removesuffix("/metrics")

            def look() -> str | None:  # its publisher answers somewhat later than it announces itself
                done = run(empty / "rankscope", "status", "--url", url, env=clean_environment())
                return done.stdout if done.returncode == 0 else None

            assert wait_for(look, lambda: "no answer") == "no run has reported to this collector\n"
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(LONGEST_S) == 0


def test_source_distribution_installs_and_watches_a_training(built: list[Path], tmp_path: Path) -> None:
    programs = make_environment(built[1], tmp_path / "environment")
    lend_torch(programs)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "steps = 0\n"
        "while steps < 30 or not os.path.exists('watched'):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "    steps += 1\n"
        "    time.sleep(0.1)\n"
        "print(steps)\n"
    )
    said, printed = tmp_path / "stderr", tmp_path / "stdout"
    command = [str(programs / "python"), "-m", "rankscope.agent", str(script)]
    environment = clean_environment(**ALONE, RANKSCOPE_RUN="from-sdist")
    with (
        said.open("w") as stderr,
        printed.open("w") as stdout,
        subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=stdout, stderr=stderr) as training,
    ):
        # The collector beside it takes a while to start, and a job that ends before has no summary.
        try:
            wait_for(lambda: True if "watching run" in said.read_text() else None, said.read_text)
            (tmp_path / "watched").touch()
            assert training.wait(LONGEST_S) == 0, said.read_text()
        finally:
            training.kill()
    assert f"{printed.read_text().strip()} steps" in said.read_text()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the oldest numpy that is asked for has no build for it")
def test_job_is_watched_by_the_oldest_versions_asked_for(built: list[Path], tmp_path: Path) -> None:
    lowest = tmp_path / "lowest.txt"
    lowest.write_text(render())
    programs = make_environment(built[0], tmp_path / "environment", "--constraint", lowest, "--only-binary", ":all:")
    asked = {name: Version(version) for name, version in read_lowest().items()}
    frozen = run_pip(programs, "freeze").stdout.lower().replace("_", "-").splitlines()
    installed = {name: Version(version) for name, _, version in (line.partition("==") for line in frozen) if version}
    assert set(installed) <= set(asked)  # nothing else comes along
    assert all(installed[name] == asked[name] for name in set(installed) & set(asked))
    assert {"msgspec", "numpy", "nvidia-ml-py", "psutil", "pyzmq"} <= set(installed)
    lend_torch(programs)
    result = tmp_path / "result.json"
    command = ("demo", "--ranks", "2", "--steps", "84", "--fault", "compute", "--slow-rank", "1", "--slow-from", "40")
    done = run(programs / "rankscope", *command, "--json-file", result, env=clean_environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(result.read_text())
    assert [rank["steps"] for rank in told["ranks"]] == [84, 84]
    assert [found["rank"] for found in told["findings"] if found["rank"] is not None] == [1]
    assert told["metrics_sample_count"] > 100
    assert not [line for line in done.stderr.splitlines() if "Warning" in line or "Traceback" in line]
