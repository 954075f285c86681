"""Tests on a real GPU. Elsewhere they are skipped, with the reason."""

import pytest
import torch


def find_reason_to_skip() -> str | None:
    """Return why these tests cannot run here; None where they can."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without a GPU"
    if not torch.cuda.is_available():
        return "torch finds no GPU on this machine"
    return None


class PrintsFailures:
    """Print a failure when it happens, since a run that has no time left is killed before its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the failure, also of a worker's test."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\n{report.nodeid} failed:\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    if torch.cuda.is_available():
        config.pluginmanager.register(PrintsFailures(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = find_reason_to_skip()
    for item in items:
        if item.get_closest_marker("gpu") is not None and reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
