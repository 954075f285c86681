"""Every dashboard by the name of its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.generator import fleet, node, rank, run

FOLDER: Final = Path(__file__).parents[1] / "dashboards"
"""Where Grafana finds them."""


def render_all() -> Mapping[str, str]:
    """The text of each file."""
    pages = {"fleet": fleet, "run": run, "rank": rank, "node": node}
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {f"{name}.json": encoder.encode(page.build().build()) + "\n" for name, page in pages.items()}
