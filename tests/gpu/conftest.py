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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = find_reason_to_skip()
    for item in items:
        if item.get_closest_marker("gpu") is not None and reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
