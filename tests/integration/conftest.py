"""Order the files of these tests, which are run by several workers, a file by one of them; lend the page a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.integration.chromium import starting_chromium

LONGEST_FIRST = (
    "test_dist", "test_demo", "test_ordered_captures_of_jobs", "test_launch", "test_fail_open",
    "test_fake_gpu_ranks", "test_fake_gpu_faults", "test_fake_gpu", "test_late_ranks", "test_embedded",
    "test_load", "test_alerting", "test_captures_on_live_page", "test_slurm", "test_pipeline",
    "test_captures", "test_ordered_ranks", "test_capture_uploads", "test_quickstart", "test_endings",
    "test_loops", "test_situations", "test_relay", "test_slurm_without_monitor", "test_history",
    "test_own_cost", "test_lost_store", "test_doctor", "test_faults_ranks", "test_fake_gpu_replay",
    "test_faults_collector", "test_hangs", "test_publisher", "test_faults_training", "test_soak",
    "test_images",
)  # fmt: skip
"""The longest files, by their time: one of them at the end would keep one worker busy and the others idle."""


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist hand out files in the order they are collected in, and not by how many tests they have."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(Path(item.path).stem, len(places)))


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """A browser with a window that shows the live page without scrolling to its charts."""
    with starting_chromium() as chromium:
        chromium.set_window_size(1300, 2200)
        yield chromium
