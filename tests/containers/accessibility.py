"""axe-core on pages that are there already: the site, reports.

    python -m tests.containers.accessibility site runs/demo/report.html

Each HTML file is opened in a headless Chromium, every other one in the dark theme. Fails where
axe-core calls something serious or critical; skips, with a reason, where a browser or axe-core is
missing.
"""

import sys
from pathlib import Path

from tests.support.browser import AXE, browsing, find_browser, serious_findings


def html_files(names: list[str]) -> list[Path]:
    """List the HTML files that are named, or below the folders that are."""
    pages: list[Path] = []
    for path in map(Path, names):
        pages += sorted(path.rglob("*.html")) if path.is_dir() else [path]
    return [page for page in pages if page.name != "404.html"]  # its scripts are at a server's root


def main(names: list[str]) -> int:
    """Look at every page, and print what is wrong with it; 1 where something is."""
    binary, pages = find_browser(), html_files(names)
    if binary is None or not AXE.is_file():
        print("accessibility: skipped, there is no Chromium or no axe-core")
        return 0
    wrong = 0
    with browsing(binary) as browser:
        for number, path in enumerate(pages):
            browser.open(path.resolve().as_uri(), dark=bool(number % 2))
            serious = serious_findings(browser)
            browser.js("localStorage.clear()")  # where the site keeps the theme
            wrong += len(serious)
            for line in dict.fromkeys(serious):
                print(f"{path}: {line}")
    print(f"accessibility: {len(pages)} pages, {wrong} serious findings")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
