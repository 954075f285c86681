"""Tells the files of a script from those of libraries, by the name of a frame's file. Most frames of all samples are of
a few files, so the answers are remembered.
"""

import os
import sysconfig
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from rankscope.agent.captures.stacks import find_torch_folder
from rankscope.measure.own_files import is_own_file

FILES_MAX: Final = 1024
"""Names of files of which the answer is remembered."""
INDUCTOR_FOLDER: Final = "/torchinductor_"
"""Part of the path of code that torch.compile has written, in its default folder."""
PACKAGES: Final = ("/site-packages/", "/dist-packages/")


class ScriptFiles:
    """Whose code a file is, in this process and environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        compiled = environment.get("TORCHINDUCTOR_CACHE_DIR", "")
        self._left_out = ("<", *filter(None, [find_torch_folder(), compiled]))
        self._python = os.path.join(sysconfig.get_paths()["stdlib"], "")
        self.is_script = lru_cache(maxsize=FILES_MAX)(self._is_script)
        """Whether it is the user's, or of a library other than torch, what torch has compiled, Python and the agent."""
        self.is_user = lru_cache(maxsize=FILES_MAX)(self._is_user)
        """Whether it is the user's: no library is installed there."""

    def _is_script(self, file: str) -> bool:
        if file.startswith(self._left_out) or INDUCTOR_FOLDER in file or is_own_file(file):
            return False
        return not file.startswith(self._python) or any(part in file for part in PACKAGES)

    def _is_user(self, file: str) -> bool:
        return self._is_script(file) and not any(part in file for part in PACKAGES)
