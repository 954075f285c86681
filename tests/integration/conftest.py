"""Order these tests, and say which are in `make test`; lend the page a browser.

They are run by several workers, a file by one of them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from selenium import webdriver

from tests.integration.chromium import starting_chromium

HERE: Final = Path(__file__).parent
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


IN_MAKE_TEST: Final[Mapping[str, str]] = {
    "test_quickstart": "installed, one line, the demo, a collector that stands, a report: each command of the page",
    "test_fail_open": "training goes on as it was, whatever of the agent fails",
    "test_hangs": "a hang is told with its rank and line",
    "test_lines_of_findings": "a slow rank is told with its source line, beside a peer",
    "test_pipeline": "a stage that becomes slow is named, and none of a healthy pipeline",
    "test_slower_than_earlier": "a run that is slower than earlier ones is found",
    "test_incidents": "an incident for each cause, which a killed collector has again",
    "test_collector_restart": "no counter decreases and no step is lost when a collector is killed",
    "test_live_metrics": "the page of metrics, as promtool and Prometheus read it",
    "test_alerting": "Prometheus and Alertmanager tell of the slow, the dead, and nothing else",
    "test_keyed_job": "agent and collector authenticate each other",
    "test_http_access": "HTTP has a token",
    "test_callbacks": "Lightning and Transformers: steps and checkpoints as the framework counts them",
    "test_live_mfu": "declared FLOPs are live MFU",
    "test_slurm_job": "Slurm",
    "test_fake_gpu_memory": "a GPU, stood in for: who was out of memory, and with what",
    "test_live_page": "the live page, in a browser",
    "test_top": "rankscope top",
    "test_status": "rankscope status",
    "test_serve": "rankscope serve; what is wrong with a setting is said with its cure",
    "test_doctor": "rankscope doctor",
    "test_analyze": "rankscope analyze",
    "test_trace_merge": "rankscope merge",
    "test_api": "every answer is one that the description of the API has",
    "test_otlp": "metrics and incidents by OTLP",
    "test_webhooks": "a webhook is notified",
    "test_sender": "what an agent sends arrives once and in order",
    "test_receiver": "who is heard, refused and cut off",
}
"""The files that `make test` runs, and the promise of the README that each holds; the others are the rest."""


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist hand out files in the order they are collected in, and not by how many tests they have."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of the other half where one half is chosen: each worker would import all."""
    if collection_path.parent != HERE or collection_path.suffix != ".py":
        return None
    is_in_make_test = collection_path.stem in IN_MAKE_TEST
    if config.option.markexpr == "rest" and is_in_make_test:
        return "mark.rest" not in collection_path.read_text(encoding="utf-8") or None
    return True if config.option.markexpr == "not rest" and not is_in_make_test else None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and mark those that `make test` leaves out."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(Path(item.path).stem, len(places)))
    for item in items:
        if item.path.parent == HERE and item.path.stem not in IN_MAKE_TEST:
            item.add_marker(pytest.mark.rest("one real job for each promise of the README is in make test"))


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """A browser with a window that shows the live page without scrolling to its charts."""
    with starting_chromium() as chromium:
        chromium.set_window_size(1300, 2200)
        yield chromium
