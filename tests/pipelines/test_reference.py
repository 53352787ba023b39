"""Settings and artifacts as the terminal describes them: by name, and errors with a list."""

import ast

import pytest

from medclip_dcl.errors import ConfigError
from pipelines import show
from pipelines.reference import artifact_references, artifact_text, settings_text
from tests.house.tree import SHIPPED, modules, syntax


def test_every_artifact_of_the_code_is_listed() -> None:
    declared = {
        node.value.args[0].value
        for path in modules(*SHIPPED)
        for node in syntax(path).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "ArtifactType"
        and isinstance(node.value.args[0], ast.Constant)
    }
    assert len(declared) > 15
    assert {one.kind.name for one in artifact_references()} == declared


def test_an_artifact_is_described_with_its_tables_and_columns() -> None:
    text = artifact_text("prepared")
    assert text.startswith("prepared, format ")
    assert "made by prepare_images\n\nPrepared images: " in text
    shard = text[text.index("shard-*.arrow") :].splitlines()
    assert shard[0] == "shard-*.arrow"
    assert shard[1:5] == [
        "image_id  string",
        "    id of the image",
        "pixels  large_binary",
        "    size x size bytes, row by row; 0 black, 255 white",
    ]


def test_a_section_has_its_settings_and_no_other() -> None:
    lines = settings_text("eta").splitlines()
    heads = [line.split(" = ")[0] for line in lines if not line.startswith(" ")]
    assert "eta.a" in heads
    assert all(name.startswith("eta.") for name in heads)
    assert settings_text("train.steps").startswith("train.steps = 100000\n    Optimiser steps")
    assert settings_text("eta") in settings_text("all")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--format", "nothing"], "show: no artifact 'nothing'; there are cards, "),
        (["--settings", "trian"], "show: no setting or section 'trian'; there are all, work, "),
        ([], "show: name a RUN, --format ARTIFACT or --settings NAME"),
    ],
)
def test_an_unknown_name_is_an_error_of_the_configuration(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show.main(words) == ConfigError.exit_code
    assert capsys.readouterr().err.startswith(line)


def test_show_describes_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["--settings", "seed", "--format", "eta_cache"]) == 0
    assert capsys.readouterr().out == (f"{artifact_text('eta_cache')}\n\n{settings_text('seed')}\n")
