"""Every recipe loads, and names jobs and files that exist."""

from pathlib import Path

import pytest
import yaml

from medclip_dcl.config import load_config
from pipelines.story import jobs_of

ROOT = Path(__file__).parents[2]
OTHER = {"serve.yaml"}
RECIPES = sorted(
    path
    for path in [
        *(ROOT / "configs").glob("*.yaml"),
        *(ROOT / "configs/train").glob("*.yaml"),
        *(ROOT / "configs/images").glob("*.yaml"),
    ]
    if path.name not in OTHER
)


def test_there_are_recipes() -> None:
    assert {"demo.yaml", "openi.yaml", "covid_cxr.yaml"} <= {path.name for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_loads_and_names_real_jobs(path: Path) -> None:
    config = load_config(path)
    assert jobs_of(config)
    assert (ROOT / config.evaluate.prompts).is_file()


@pytest.mark.parametrize("path", sorted((ROOT / "configs/prompts").glob("*.yaml")), ids=str)
def test_prompt_file_has_both_sides_of_every_finding(path: Path) -> None:
    prompts = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert prompts["format_version"] == 1
    for finding in prompts["findings"]:
        assert finding["positive"] != finding["negative"]


def test_readme_of_recipes_names_each() -> None:
    text = (ROOT / "configs/README.md").read_text(encoding="utf-8")
    assert [path.name for path in RECIPES if path.name not in text] == []
