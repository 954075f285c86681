"""Programs of the system that tests ask; `.ci/run` names the package of each."""

import shutil


def find_program(name: str) -> str:
    """The path of a program. Fails, naming it, where it is not installed."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed; .ci/run names the packages that the tests need"
    return found
