"""Tests of anonymous files, with and without files in memory."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from rankscope.agent.nameless_file import open_nameless


def remove(patch: pytest.MonkeyPatch) -> None:
    """As in a Python that was built for glibc 2.17."""
    patch.delattr(os, "memfd_create")


def refuse(patch: pytest.MonkeyPatch) -> None:
    """As in a sandbox that filters system calls."""

    def fail(name: str) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented", name)

    patch.setattr(os, "memfd_create", fail)


def allow(patch: pytest.MonkeyPatch) -> None:
    """As it is here."""


@pytest.mark.parametrize("prepare", [allow, remove, refuse])
def test_child_writes_to_nameless_file(prepare: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch)
        file = open_nameless("trial")
    with file:
        subprocess.run([sys.executable, "-c", "print('said', end='')"], stdout=file, check=True)
        file.seek(0)
        assert file.read() == b"said"
        assert os.fstat(file.fileno()).st_nlink == 0, "no folder has it"
