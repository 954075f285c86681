"""Build command lines for child processes of rankscope that import nothing from the working directory.

`python -m MODULE` searches the working directory first. Training is often started in a folder with a `calendar.py` or a
`random.py` in it, and a child would import that. Python 3.11 has the option -P against it, 3.10 has not, and neither
keeps PYTHONPATH from shadowing the standard library. -I would, but also hides the folders where rankscope itself may be
installed.
"""

from typing import Final

BOOT: Final = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "import os; home = os.path.dirname(os.__file__); first = (home, os.path.join(home, 'lib-dynload')); "
    "sys.path.sort(key=lambda folder: folder not in first); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Python code that drops the working directory from sys.path, puts the standard library first (all else keeps its
order) and runs MODULE."""


def build_child_command(program: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` in the interpreter `program`, as `program -m module` does in an empty
    directory.

    >>> program, option, boot, *rest = build_child_command("python3", "rankscope.collector", "serve")
    >>> program, option, rest
    ('python3', '-c', ['rankscope.collector', 'serve'])
    """
    return [program, "-c", BOOT, module, *arguments]
