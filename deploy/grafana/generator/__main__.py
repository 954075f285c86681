"""Writes the dashboards: `python -m deploy.grafana.generator`, from the root of the repository."""

from deploy.grafana.generator.pages import FOLDER, render_all

for name, text in render_all().items():
    (FOLDER / name).write_text(text, encoding="utf-8")
