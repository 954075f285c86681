"""Render every dashboard to the text of its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.generator import fleet, node, rank, run

FOLDER: Final = Path(__file__).parents[1] / "dashboards"
"""Folder that Grafana reads."""


def render_all() -> Mapping[str, str]:
    """Return the text of each file, by name."""
    pages = {"fleet": fleet, "run": run, "rank": rank, "node": node}
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {f"{name}.json": encoder.encode(page.build().build()) + "\n" for name, page in pages.items()}
