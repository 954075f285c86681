"""Check the dashboards against the types of Grafana itself, by the TypeScript compiler.

    python deploy/grafana/check_types.py 11.6.0 12.4.0 13.2.3

For each release its package @grafana/schema is installed by npm into a folder that is thrown away, and every dashboard
is compiled as a literal of its types, with those of each kind of panel for its options and fields. A field that is not
there, a value that none of its kind is, a number where a text should be: all are errors. It is no test, because it
needs node, npm and what they fetch; README.md has its last result. Exit code 1: a dashboard is refused.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

DASHBOARDS: Final = Path(__file__).parent / "dashboards"
TYPESCRIPT: Final = "typescript@5.9"
PANEL_TYPES: Final[Mapping[str, str]] = {
    "heatmap": "Heatmap",
    "stat": "Stat",
    "state-timeline": "StateTimeline",
    "status-history": "StatusHistory",
    "table": "Table",
    "text": "Text",
    "timeseries": "TimeSeries",
}
"""What the files are called that have the types of each kind of panel."""
WITHOUT_FIELDS: Final = frozenset({"stat", "text"})
"""Kinds whose fields have nothing beyond what all have."""
COMPILER_OPTIONS: Final = {
    "strict": True,
    "noEmit": True,
    "skipLibCheck": True,
    "module": "esnext",
    "moduleResolution": "node",  # the older way, which finds files that the package does not export
}
PREAMBLE: Final = """\
import type { AnnotationQuery, Dashboard, FieldConfig, Panel, RowPanel } from '@grafana/schema';
// As JSON has it: members of enumerations by their values, and nothing beyond what is there.
type Json<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
// What only the data source knows: the fields of its queries, and how it words an annotation.
type Query = Record<string, unknown>;
type Annotation = Json<Omit<AnnotationQuery, 'target'>> & { target: Query; titleFormat: string; textFormat: string };
type Page = Json<Omit<Dashboard, 'panels' | 'annotations'>> & {
  panels: unknown[];
  annotations: { list?: Annotation[] };
};
type Shown<Options, Fields> = Json<Omit<Panel, 'options' | 'fieldConfig'>> & {
  options: Json<Partial<Options>>;
  fieldConfig: {
    defaults: Json<Omit<FieldConfig, 'custom'>> & { custom?: Json<Partial<Fields>> };
    overrides: unknown[];
  };
};
"""


def main(arguments: list[str] | None = None) -> int:
    """Check against each release; how many refuse something, at most 1."""
    parser = argparse.ArgumentParser(description="Check the dashboards against Grafana's types.")
    parser.add_argument("release", nargs="+", help="of Grafana, such as 11.6.0")
    refused = 0
    for release in parser.parse_args(arguments).release:
        with tempfile.TemporaryDirectory() as folder:
            said = check(release, Path(folder))
        print(f"Grafana {release}: {said or 'accepted'}")
        refused |= bool(said)
    return refused


def check(release: str, folder: Path) -> str:
    """What the compiler says of the dashboards; nothing when it accepts them."""
    (folder / "package.json").write_text(json.dumps({"private": True}))
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": COMPILER_OPTIONS, "include": ["*.ts"]}))
    packages = [f"@grafana/schema@{release}", TYPESCRIPT]
    npm, npx = find("npm"), find("npx")
    subprocess.run(
        [npm, "install", "--silent", "--no-audit", "--no-fund", *packages], cwd=folder, check=True, capture_output=True
    )
    for path in DASHBOARDS.glob("*.json"):
        (folder / f"{path.stem}.ts").write_text("\n".join(write_module(json.loads(path.read_text()))))
    done = subprocess.run([npx, "tsc", "-p", "."], cwd=folder, check=False, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def find(program: str) -> str:
    """The path of a program. Raises SystemExit, which says so, where it is not installed."""
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"{program} is not installed; this check needs node and npm")
    return path


def write_module(page: dict[str, Any]) -> Iterator[str]:
    """A dashboard as TypeScript: a constant for the page without its panels, and one for each panel."""
    yield PREAMBLE
    for name in PANEL_TYPES.values():
        folder = f"@grafana/schema/dist/esm/raw/composable/{name.lower()}/panelcfg/x"
        yield f"import type * as {name} from '{folder}/{name}PanelCfg_types.gen';"
    yield f"export const page: Page = {json.dumps({**page, 'panels': []})};"
    inside = [panel for row in page["panels"] for panel in row.get("panels", ())]
    for panel in [*page["panels"], *inside]:
        yield f"export const panel{panel['id']}: {find_type(panel['type'])} = {json.dumps(panel)};"


def find_type(kind: str) -> str:
    """The type of a kind of panel."""
    if kind == "row":
        return "Json<RowPanel>"
    name = PANEL_TYPES[kind]
    return f"Shown<{name}.Options, {'{}' if kind in WITHOUT_FIELDS else f'{name}.FieldConfig'}>"


if __name__ == "__main__":
    sys.exit(main())
