"""The schema says of every shipped config what the program says of it."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from pipelines.__main__ import config_schema

CONFIGS = Path(__file__).parents[2] / "configs"
OTHER = {"serve.yaml"}  # settings of a service, not of a run
SHIPPED = sorted(
    path
    for folder in (CONFIGS, CONFIGS / "train", CONFIGS / "evaluate")
    for path in folder.glob("*.yaml")
    if path.name not in OTHER
)
LINE = "# yaml-language-server: $schema="


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_config_fits_the_schema_and_names_its_file(validator):
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        found = [error.json_path for error in validator.iter_errors(yaml.safe_load(text))]
        assert (path.name, found) == (path.name, [])
        first = text.splitlines()[0]
        assert first.startswith(LINE), path.name
        named = (path.parent / first.removeprefix(LINE)).resolve()
        assert named == CONFIGS / "schema.json"  # which `make` writes


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ({"train": {"step": 3}}, "$.train"),
        ({"train": {"steps": "many"}}, "$.train.steps"),
        ({"evaluate": {"bootstrap": -1}}, "$.evaluate.bootstrap"),
        ({"source": {"columns": {"patient": "id"}}}, "$.source.columns"),
        ({"jobs": ["train", "tain"]}, "$.jobs[1]"),
        ({"seeds": 3}, "$"),
    ],
)
def test_a_slip_is_found_where_it_is(validator, tree, where):
    assert [error.json_path for error in validator.iter_errors(tree)] == [where]
