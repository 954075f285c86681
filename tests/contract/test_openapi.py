"""Check that the description of the API matches the code, and that each answer in it is one that the code gives."""

import json
import re

from rankscope.collector.publish.api.routes_api import OPENAPI_PATH, read_openapi
from rankscope.collector.publish.routes import INDEX
from tests.contract.openapi_file import FILE, build, render


def test_the_shipped_description_is_that_of_the_code() -> None:
    # To bring it up to date: python -m tests.contract.openapi_file
    assert FILE.read_text(encoding="utf-8") == render()


def test_what_is_shipped_is_what_is_served() -> None:
    assert json.loads(read_openapi()) == json.loads(render())


def test_every_reference_in_the_description_leads_somewhere() -> None:
    description = build()
    schemas = description["components"]["schemas"]
    named = {text.rpartition("/")[2] for text in _find_references(description)}
    assert named
    assert named - set(schemas) == set()


def test_every_path_but_those_of_orders_is_about_reading() -> None:
    paths = build()["paths"]
    posted = {path: set(methods) for path, methods in paths.items() if set(methods) != {"get"}}
    assert posted == {"/api/v1/runs/{run}/captures": {"post"}, "/api/v1/runs/{run}/settings": {"get", "post"}}


def test_the_list_of_what_there_is_names_the_description() -> None:
    assert OPENAPI_PATH in INDEX


def _find_references(value: object) -> list[str]:
    if isinstance(value, list):
        return [found for one in value for found in _find_references(one)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if "$ref" in value else []
    return own + [found for one in value.values() for found in _find_references(one)]


def test_documentation_names_every_path_and_no_other() -> None:
    text = (FILE.parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(/api/v1/[^`]+)` \|", text, flags=re.MULTILINE))
    assert documented == set(build()["paths"])
