"""Check the files in the wheel, which setuptools builds from a list of packages and not from the folders."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rankscope.agent.run_report import NOT_MEASURED
from rankscope.collector.commands.files import FOLDERS, find_names
from rankscope.measure import __version__
from tests.helm import find_helm
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "collector", "measure", "uplink")
OWN = {f"rankscope/{name}": f".package/rankscope/{name}" for name in ("__init__.py", "py.typed")}
"""The files of `rankscope` itself, which lie beside the links to the four packages."""
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
SHIPPED_KINDS = {".py", ".css", ".js", ".html", ".svg", ".json"}
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")

pytestmark = pytest.mark.xdist_group("wheel")  # one worker builds it, once


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Return the wheel of a copy of the tree, so that building leaves nothing behind here."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, tree)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=LEFT_OUT)
    shutil.copytree(ROOT / ".package", tree / ".package", ignore=LEFT_OUT, symlinks=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)
    (tree / "deploy/docker/agent.key").write_text("a secret key")
    (tree / "configs/collector.key").write_text("a secret key")
    # Without build isolation, which would fetch setuptools anew: the tests have it installed.
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the wheel is installed in, without what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    assert wheel.filename is not None
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(folder), wheel.filename]
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True, timeout=200)
    return folder


@pytest.fixture(scope="module")
def copied(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files that the installed wheel copies."""
    folder = tmp_path_factory.mktemp("copied")
    # Before the editable installation that these tests run in.
    command = [sys.executable, "-m", "rankscope.collector", "files", "--copy", str(folder / "copy")]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL, timeout=100)
    return folder / "copy"


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def find_shipped() -> set[str]:
    """Return the files of the tree that must be in the wheel, by their names there."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
    return (
        set(OWN)
        | {f"rankscope/shipped/{name}" for name in find_names(ROOT, "*")}
        | {f"rankscope/{path.relative_to(ROOT).as_posix()}" for path in files if path.suffix in SHIPPED_KINDS}
    )


def find_source(name: str) -> str:
    """Return the path in the tree of a file of the wheel."""
    if name in OWN:
        return OWN[name]
    return name.removeprefix("rankscope/").removeprefix("shipped/")


def test_wheel_has_every_file_of_the_four_packages_only(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == find_shipped()


def test_the_files_in_the_wheel_are_those_of_the_tree(wheel: zipfile.ZipFile) -> None:
    changed = [name for name in find_shipped() if wheel.read(name) != (ROOT / find_source(name)).read_bytes()]
    assert changed == []


def test_the_installed_wheel_copies_what_a_checkout_does(copied: Path) -> None:
    names = sorted(path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file())
    assert names == find_names(ROOT, "*")
    assert os.access(copied / "deploy/k8s/node-condition/check-node.sh", os.X_OK)


def test_every_kustomization_of_the_copy_renders(copied: Path) -> None:
    found = sorted(copied.rglob("kustomization.yaml"))
    assert len(found) == len([*ROOT.glob("deploy/**/kustomization.yaml")]) > 0
    for one in found:
        command = [find_program("kubectl"), "kustomize", str(one.parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


def test_every_chart_of_the_copy_renders(copied: Path) -> None:
    (chart,) = copied.rglob("Chart.yaml")
    options = ["--set=rules.enabled=true", "--set=dashboards.enabled=true"]
    command = [find_helm(), "template", "rankscope", str(chart.parent), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("RankscopeStragglerRank") == done.stdout.count("- alert: RankscopeStragglerRank") * 2 > 0


def test_every_link_of_the_copy_leads_to_a_file(copied: Path) -> None:
    """Those to the checkout itself (README, SECURITY, tests) are left: the copy has three folders of it."""
    broken = [
        f"{page.relative_to(copied)}: {target}"
        for page in copied.rglob("*.md")
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
        and (page.parent / target).resolve().relative_to(copied).parts[0] in FOLDERS
    ]  # fmt: skip
    assert broken == []


def test_the_installed_wheel_needs_one_import(installed: Path) -> None:
    script = (
        "import rankscope; print(rankscope.__file__, rankscope.__version__, rankscope.status()['absent']['findings']);"
        "rankscope.step(); exec('with rankscope.phase(\"checkpoint\"): pass'); print(rankscope.agent.__file__)"
    )
    # Neither this checkout nor the editable installation that these tests run in: what they depend on only.
    paths = [str(installed), *(path for path in sys.path if path.endswith("site-packages"))]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths}; {script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=installed, timeout=100)
    assert done.stdout.splitlines() == [
        f"{installed}/rankscope/__init__.py {__version__} {NOT_MEASURED}",
        f"{installed}/rankscope/agent/__init__.py",
    ]


def test_the_wheel_asks_for_no_torch(metadata: Message) -> None:
    asked = metadata.get_all("Requires-Dist", [])
    assert asked
    assert [requirement for requirement in asked if re.match(r"torch\b", requirement, re.IGNORECASE)] == []


def test_the_wheel_says_its_name_its_license_and_its_python(metadata: Message, wheel: zipfile.ZipFile) -> None:
    assert (metadata["Name"], metadata["License-Expression"], metadata["Requires-Python"]) == (
        "rankscope",
        "Apache-2.0",
        ">=3.10",
    )
    assert [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]


def test_the_release_has_one_number(metadata: Message) -> None:
    assert metadata["Version"] == __version__


def test_the_wheel_brings_the_command_and_the_hook_of_torch(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    entries = ConfigParser()
    entries.read_string(wheel.read(name).decode())
    assert {section: dict(entries[section]) for section in entries.sections()} == {
        "console_scripts": {"rankscope": "rankscope.collector.commands.main:main"},
        "torch.backends": {"rankscope": "rankscope.agent.launch:autoload"},
    }


def test_no_key_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if name.endswith(".key")] == []


def test_readme_of_the_wheel_has_no_relative_target(metadata: Message) -> None:
    targets = re.findall(r"\]\(([^)]*)\)", str(metadata.get_payload()))
    assert "https://rankscope.example.com/docs/images/live-page.png" in targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_the_wheel_says_where_the_project_is(metadata: Message) -> None:
    assert metadata.get_all("Project-URL") == ["Source, https://rankscope.example.com"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "straggler" in metadata["Keywords"]


def test_training_environment_gets_only_what_the_agent_needs(metadata: Message) -> None:
    asked = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    base = {one.name for one in asked if one.marker is None or "extra" not in str(one.marker)}
    assert base == {"msgspec", "numpy", "nvidia-ml-py", "psutil", "pyzmq", "tomli"}
