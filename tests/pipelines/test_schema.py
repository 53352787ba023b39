"""The schema says of every shipped config what the program says of it."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipelines.schema import config_schema, main
from pipelines.stages import STAGES

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


def test_every_config_fits_the_schema_and_names_its_file(
    validator: jsonschema.Draft202012Validator,
) -> None:
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
        ({"evaluate": {"split": "train"}}, "$.evaluate.split"),
        ({"source": {"columns": {"patient": "id"}}}, "$.source.columns"),
        ({"jobs": ["train", "tain"]}, "$.jobs[1]"),
        ({"seeds": 3}, "$"),
    ],
)
def test_a_slip_is_found_where_it_is(
    validator: jsonschema.Draft202012Validator, tree: dict[str, object], where: str
) -> None:
    assert [error.json_path for error in validator.iter_errors(tree)] == [where]


def test_the_command_prints_it_with_the_meaning_of_every_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == config_schema()
    sections = [printed, *printed["$defs"].values()]
    settings = [item for section in sections for item in section.get("properties", {}).items()]
    assert len(settings) > 100
    assert [name for name, item in settings if not item.get("description")] == []
    assert printed["properties"]["jobs"]["items"]["enum"] == list(STAGES)
