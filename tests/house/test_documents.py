"""Documents that cannot drift: the tables are made from the code, the links lead somewhere."""

import re
from pathlib import Path

import pytest

from api.settings import ServeSettings
from docs import figures
from docs.pages import PAGES
from docs.reference import artifact_references, setting_references
from docs.tables import RESULT_PAGES, ROOT, RUN
from medclip_hospital.gateway.settings import GatewaySettings
from pipelines.config import Config
from tests.house.tree import SHIPPED, modules, name_of, tracked

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("name", sorted(PAGES))
def test_generated_page_of_the_site_has_a_title_and_no_empty_cell(name: str) -> None:
    page = PAGES[name]()
    assert page.startswith("# ")
    assert page.count("\n") > 20
    assert not re.search(r"^\|.*\|\s+\|$", page, re.MULTILINE)


def test_every_setting_is_described_and_on_the_site() -> None:
    page = PAGES["reference/settings.md"]()
    schemas = (Config, ServeSettings, GatewaySettings)
    settings = [one for schema in schemas for one in setting_references(schema)]
    assert len(settings) > 150
    assert [one.name for one in settings if len(one.meaning) < 5] == []
    assert [one.name for one in settings if f"\n### `{one.name}` " not in page] == []
    assert "of `infonce` · " in page


def test_every_column_is_described_and_on_the_site() -> None:
    page = PAGES["reference/artifacts.md"]()
    artifacts = artifact_references()
    assert [one.kind.name for one in artifacts if len(one.meaning) < 20] == []
    columns = [one for artifact in artifacts for form in artifact.tables for one in form.columns]
    assert len(columns) > 120
    assert [one.name for one in columns if len(one.meaning) < 5] == []
    assert [one.name for one in columns if f"\n| `{one.name}` | {one.type} | " not in page] == []


@pytest.mark.parametrize("page", RESULT_PAGES, ids=lambda page: page.stem)
def test_results_say_command_machine_and_day(page: Path) -> None:
    assert RUN.search(page.read_text(encoding="utf-8"))


def test_links_lead_to_files_and_headings() -> None:
    broken, pages = [], tracked(".md")
    assert len(pages) > 8
    for page in pages:
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            file = page.parent / target if target else page
            if not file.exists() and target not in PAGES:
                broken.append(f"{name_of(page)} -> {target}")
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
                if anchor not in slugs:
                    broken.append(f"{name_of(page)} -> {target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("name", sorted(figures.FIGURES))
def test_figures_are_drawn_by_the_code_and_have_alternative_texts(name: str) -> None:
    # Words, and arrows by their names: paths may differ in their last digits elsewhere.
    words = re.compile(r">([^<]+)</text>|<g id=\"(\w+ imports \w+)\"")
    kept = (ROOT / f"docs/figures/{name}.svg").read_text(encoding="utf-8")
    assert len(kept) < 40_000
    assert words.findall(figures.svg(name)) == words.findall(kept) != [], "run `make docs`"
    pages = (path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    texts = re.findall(rf"!\[([^]]+)\]\((?:\.\./)*figures/{name}.svg\)", "".join(pages))
    assert texts
    assert min(map(len, texts)) > 80


def test_every_artifact_of_the_code_is_listed() -> None:
    declaration = re.compile(r"= ArtifactType\(\s*\"(\w+)\"")
    texts = (path.read_text(encoding="utf-8") for path in modules(*SHIPPED))
    declared = {name for text in texts for name in declaration.findall(text)}
    assert len(declared) > 15
    assert {one.kind.name for one in artifact_references()} == declared


def test_the_readme_names_the_commands_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / page).read_text(encoding="utf-8")))
        assert named, page
        assert named <= targets, page


def test_every_promise_about_the_method_has_its_test() -> None:
    page = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", page)
    assert len(named) == 30
    for test, file in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


def test_nothing_names_a_distribution_that_no_index_holds() -> None:
    """Who registers the name at an index would otherwise own whoever follows a page."""
    named = re.compile(r"pip install [^\n`]*\bmedclip[-_]dcl|[`'\" ]medclip[-_]dcl\[")
    files = tracked(".py", ".md", ".yaml", ".toml", ".html", ".ipynb", ".service")
    found = {name_of(path) for path in files if named.search(path.read_text(encoding="utf-8"))}
    # What was; and an extra of its own, which pip takes from where it installs.
    assert found <= {"CHANGELOG.md", "pyproject.toml"}
