"""What pyproject.toml cannot say: the README for an index page, where relative pictures and links lead nowhere."""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def render_readme() -> str:
    """Return README.md with each relative target of a link or picture under the project's `Source` URL."""
    (base,) = re.findall(r'^Source = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?![a-z]+:|#|/)", f"]({base}/", text)


# script_name: without it setuptools ships this file as a module of rankscope.shipped.
setup(script_name="setup.py", long_description=render_readme(), long_description_content_type="text/markdown")
