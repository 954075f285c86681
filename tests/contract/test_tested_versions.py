"""The versions that docs/ says the integrations were tested with are those that the tests install."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("launchers.md", "loggers.md")
NAMES = {
    "torch": "torch", "Accelerate": "accelerate", "Lightning": "lightning", "PyTorch Lightning": "lightning",
    "Transformers": "transformers", "Transformers' `Trainer`": "transformers", "TRL": "trl",
    "TensorBoard": "tensorboard", "MLflow": "mlflow-skinny", "Weights & Biases": "wandb",
}  # fmt: skip
"""Package by its name in the pages."""
BY_FRAMEWORKS = ("Ray Train", "DeepSpeed")
"""Only `make test-frameworks` installs these: their rows name its page."""
VERSION = re.compile(r"\d+(?:\.\d+)+")


def read_pins() -> dict[str, str]:
    """The version of each package in constraints.txt for the newest Python."""
    pins: dict[str, str] = {}
    for name, version in re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE):
        pins.setdefault(name, version)
    return pins


def is_of(stated: str, pinned: str) -> bool:
    """Whether a version in a text, maybe without its last number, is the pinned one."""
    return f"{pinned}.".startswith(f"{stated}.")


def read_rows() -> list[tuple[str, str]]:
    """Name and last cell of each row of the table of launchers."""
    lines = (ROOT / "docs" / "launchers.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [(row[0], row[-1]) for row in rows[1:]]


def test_constraints_pin_every_package_that_the_pages_name() -> None:
    assert set(NAMES.values()) <= read_pins().keys()


@pytest.mark.parametrize(("name", "tried"), [row for row in read_rows() if row[0] in NAMES])
def test_version_of_a_launcher_is_the_one_that_the_tests_install(name: str, tried: str) -> None:
    assert is_of(VERSION.findall(tried)[0], read_pins()[NAMES[name]])


@pytest.mark.parametrize("name", BY_FRAMEWORKS)
def test_launcher_installed_for_frameworks_only_names_its_page(name: str) -> None:
    tried = dict(read_rows())[name]
    assert VERSION.match(tried)
    assert "frameworks.md" in tried


def test_every_test_that_the_table_names_exists() -> None:
    named = {found for _, tried in read_rows() for found in re.findall(r"`(test_\w+\.py)`", tried)}
    assert named
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES)
def test_versions_in_the_text_are_those_that_the_tests_install(page: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    names = "|".join(sorted(map(re.escape, NAMES), key=len, reverse=True))
    stated = re.findall(rf"\b({names})(?: \(`[\w-]+`\))? (\d+(?:\.\d+)+)", text)
    assert stated
    pins = read_pins()
    assert [(name, version) for name, version in stated if not is_of(version, pins[NAMES[name]])] == []
