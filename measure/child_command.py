"""How a program of ours starts another one of ours: with nothing imported from the directory that it happens to be in.

`python -m MODULE` searches the working directory before everything else. A training job is often started in a folder
with a `calendar.py` or a `random.py` in it, and a child of ours would import that. Python 3.11 has the option -P
against it, 3.10 has not, and neither keeps PYTHONPATH from shadowing the standard library. -I would, and would also
lose the places where rankscope itself may be installed.
"""

from typing import Final

BOOT: Final = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "import os; home = os.path.dirname(os.__file__); first = (home, os.path.join(home, 'lib-dynload')); "
    "sys.path.sort(key=lambda folder: folder not in first); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Leaves the working directory out, puts the standard library first (the sort keeps every other order), runs MODULE."""


def build_child_command(program: str, module: str, *arguments: str) -> list[str]:
    """Return what runs `module` in the interpreter `program`, as `program -m module` does from an empty directory.

    >>> program, option, boot, *rest = build_child_command("python3", "rankscope.collector", "serve")
    >>> program, option, rest
    ('python3', '-c', ['rankscope.collector', 'serve'])
    """
    return [program, "-c", BOOT, module, *arguments]
