"""Programs of the system that tests ask; `tests/system_packages.sh` has the package of each."""

import shutil


def find_program(name: str) -> str:
    """Return the path of a program. Fails, naming it, where it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")  # where Debian has its daemons
    assert found is not None, f"{name} is not installed; `make packages` installs what the tests need"
    return found
