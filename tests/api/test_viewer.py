"""The page holds what its script looks for, and neither reaches for anything else."""

import re
from html.parser import HTMLParser
from pathlib import Path

STATIC = Path(__file__).parents[2] / "api/static"
SCRIPT = "".join(file.read_text(encoding="utf-8") for file in sorted(STATIC.glob("*.js")))
STYLE = (STATIC / "viewer.css").read_text(encoding="utf-8")
PAGE = (STATIC / "index.html").read_text(encoding="utf-8")


class Elements(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


ELEMENTS = Elements(PAGE).found
IDS = [attributes["id"] for _, attributes in ELEMENTS if "id" in attributes]


def test_the_script_finds_every_element_that_it_looks_for() -> None:
    wanted = set(re.findall(r'find\("([\w-]+)"\)', SCRIPT))
    assert len(wanted) > 12
    assert wanted <= set(IDS)
    assert len(IDS) == len(set(IDS))


def test_every_control_has_a_name() -> None:
    labelled = re.findall(r"<label[^>]*>[^<]+<input id=\"(\w+)\"", re.sub(r"\s*\n\s*", "", PAGE))
    controls = [attributes for tag, attributes in ELEMENTS if tag == "input"]
    assert len(controls) == 4
    assert all("aria-label" in attributes for tag, attributes in ELEMENTS if tag == "select")
    for attributes in controls:
        named = "aria-label" in attributes or attributes["id"] in labelled
        assert named or "hidden" in attributes, attributes["id"]


def test_nothing_comes_from_elsewhere_or_stays_behind() -> None:
    for tag, attributes in ELEMENTS:
        target = attributes.get("src") or attributes.get("href") or ""
        assert target.startswith(("static/", "data:,")) or not target, tag
    assert set(re.findall(r"localStorage\.\w+\(([^,)]+)", SCRIPT)) == {'"theme"'}
    for word in ("sessionStorage", "document.cookie", "indexedDB", "innerHTML"):
        assert word not in SCRIPT
    for text in (SCRIPT, STYLE):
        assert "url(" not in text
        assert "//cdn" not in text
