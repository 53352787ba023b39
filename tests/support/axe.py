"""axe-core in a page: what keeps people with a screen reader, or poor sight, from using it."""

from pathlib import Path

from tests.support.browser import Page

AXE = Path(__file__).parents[2] / ".venv/axe/axe_playwright_python/axe.min.js"
"""Where `make` puts it; of the package, this file alone is used."""

_RUN = """axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations
    .filter((item) => ['serious', 'critical'].includes(item.impact))
    .flatMap((item) => item.nodes.map((node) => `${item.id}: ${node.html.slice(0, 160)}`)))"""


def serious_findings(page: Page) -> list[str]:
    """List what axe-core calls serious or critical in the page as it stands: rule and element."""
    page.js(AXE.read_text(encoding="utf-8") + ";0")
    return page.js(_RUN)
