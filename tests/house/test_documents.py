"""Documents that cannot drift: the tables are made from the code, the links lead somewhere."""

import re
from pathlib import Path

import pytest

from docs import figures
from tests.house.documents import RESULT_PAGES, ROOT, TABLES, with_runs, with_table
from tests.house.tree import name_of, tracked

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
FOLDERS = (
    "medclip_dcl",
    "pipelines",
    "api",
    "gateway",
    "configs",
    "tests",
    "docker",
    "benchmarks",
    "examples",
)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_table_says_what_the_code_says(name: str) -> None:
    file, make = TABLES[name]
    table = make()
    assert table.count("\n") > 4
    text = (ROOT / file).read_text(encoding="utf-8")
    assert with_table(text, name, table) == text, "run `make docs`"


@pytest.mark.parametrize("page", RESULT_PAGES, ids=lambda page: page.stem)
def test_results_say_command_machine_and_day(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- runs: " in text
    assert with_runs(text) == text, "run `make docs`"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_says_what_it_is(folder: str) -> None:
    assert len((ROOT / folder / "README.md").read_text(encoding="utf-8")) > 400


def test_links_lead_to_files() -> None:
    pages = tracked(".md")
    assert len(pages) > 8
    broken = [
        f"{name_of(page)} -> {target}"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("name", sorted(figures.FIGURES))
def test_figures_are_drawn_by_the_code_and_have_alternative_texts(name: str) -> None:
    words = re.compile(r">([^<]+)</text>")  # paths may differ in their last digits elsewhere
    kept = (ROOT / f"docs/figures/{name}.svg").read_text(encoding="utf-8")
    assert len(kept) < 40_000
    assert words.findall(figures.svg(name)) == words.findall(kept) != [], "run `make docs`"
    page = (ROOT / "docs/how_it_works.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"!\[([^]]+)\]\(figures/{name}.svg\)", page)
    assert len(text) > 80


def test_the_tutorial_goes_through_every_section_of_the_report() -> None:
    pages = [path for path in tracked(".html") if path.parent.name == "reporting"]
    pages = [path for path in pages if path.name != "sweep.html"]  # a page of its own
    sections = re.findall(r"<h2>(.*?)</h2>", "".join(page.read_text("utf-8") for page in pages))
    text = (ROOT / "docs/tutorials/report.md").read_text(encoding="utf-8")
    explained = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert len(explained) == 12
    assert set(sections) - set(explained) == {"Is the data sound?"}  # the page of check_data


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
    assert len(named) == 31
    for test, file in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


def test_nothing_names_a_distribution_that_no_index_holds() -> None:
    """Who registers the name at an index would otherwise own whoever follows a page."""
    named = re.compile(r"pip install [^\n`]*\bmedclip[-_]dcl|[`'\" ]medclip[-_]dcl\[")
    files = tracked(".py", ".md", ".yaml", ".toml", ".html", ".ipynb", ".service")
    found = {name_of(path) for path in files if named.search(path.read_text(encoding="utf-8"))}
    assert found <= {"CHANGELOG.md"}  # which says what was
