"""Whether a viewer shows the answers: OHIF in a real browser, on a real Orthanc.

    OHIF=FOLDER python -m hospital.tests.ohif [--picture FILE]

FOLDER holds OHIF's pages (`dist` of npm's `@ohif/app`); without the variable npm fetches them.
Needs Debian's orthanc, orthanc-dicomweb and chromium. Three studies are opened: one with findings
that have boxes, whose names and numbers must stand on the image; one without, whose lines must
stand at its outline; and one whose report, though valid, has a measurement group without
coordinates. OHIF 3.13 shows that one as a black pane: should this change, our rule against such
groups can go.
"""

import argparse
import io
import mimetypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pydicom

from benchmarks.record import finish, judge
from hospital.tests.support import answers, orthanc
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from tests.support.browser import Page, browsing, find_browser
from tests.support.dicom import ramp
from tests.support.hub import Handler, served

VERSION = "3.13.2"
BARS = {"boxes_shown": "2", "negative_lines": "4", "black_without_coordinates": "1"}
_WEBGL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")
_PATIENCE_S = 60.0
_BLACK_AFTER_S = 15.0
_CONFIG = Path(__file__).parents[2] / "docker/hospital/ohif.js"


@contextmanager
def viewer(pages: Path, pacs: orthanc.Orthanc) -> Iterator[str]:
    """Serve OHIF's pages and the PACS from one origin; gives its address."""

    class Pages(Handler):
        def do_GET(self) -> None:  # noqa: N802 (http.server's name)
            path = self.path.partition("?")[0]
            if path.startswith("/dicom-web"):
                found = web.get(self.path, headers={"Accept": self.headers.get("Accept", "*/*")})
                kind, data, status = found.headers["Content-Type"], found.content, found.status_code
            elif path == "/app-config.js":
                kind, data, status = "text/javascript", _CONFIG.read_bytes(), 200
            else:
                file = (pages / path.lstrip("/")).resolve()
                if not (file.is_file() and file.is_relative_to(pages)):
                    file = pages / "index.html"
                kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                data, status = file.read_bytes(), 200
            isolated = {"Cross_Origin_Opener_Policy": "same-origin"}
            isolated["Cross_Origin_Embedder_Policy"] = "require-corp"
            self.answer(status, data, kind, **isolated)

    with httpx.Client(base_url=pacs.url, trust_env=False, timeout=30) as web, served(Pages) as url:
        yield url


def main(argv: Sequence[str] | None = None) -> int:
    """Open the studies and print what was seen; 1 where a part is not installed."""
    parser = argparse.ArgumentParser(prog="python -m hospital.tests.ohif")
    parser.add_argument("--picture", type=Path, help="where to keep what the first study shows")
    arguments = parser.parse_args(argv)
    binary = find_browser()
    if lacking := orthanc.missing() or ("" if binary else "chromium"):
        print(f"not installed: {lacking}; these are Debian's packages", file=sys.stderr)
        return 1
    assert binary is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pages = _pages(folder)
        with orthanc.running(folder / "pacs") as pacs:
            studies = _store_studies(pacs)
            with viewer(pages, pacs) as url, browsing(binary, *_WEBGL) as page:
                shown = {
                    kind: _texts(page, f"{url}/viewer?StudyInstanceUIDs={uid}", kind)
                    for kind, uid in studies.items()
                }
                if arguments.picture:
                    _texts(page, f"{url}/viewer?StudyInstanceUIDs={studies['boxes']}", "boxes")
                    page.picture(arguments.picture)
    for kind, texts in shown.items():
        print(f"{kind:24} {len(texts)} labels")
    lines = ["Effusion: probability: 83.00 %", "Pneumonia: score, no probability: 0.61 {score}"]
    # A label is drawn twice, once for its shadow.
    figures = {
        "boxes_shown": float(sum(shown["boxes"].count(line) >= 2 for line in lines)),
        "negative_lines": float(len({text for text in shown["no box"] if text.count(":") == 2})),
        "black_without_coordinates": float(not shown["no coordinates"]),
    }
    return finish("ohif", figures, judge(figures, BARS))


def _pages(folder: Path) -> Path:
    """Find OHIF's pages, or fetch them."""
    if named := os.environ.get("OHIF"):
        return Path(named).resolve()
    command = ["npm", "pack", "--silent", f"@ohif/app@{VERSION}"]
    packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    shutil.unpack_archive(folder / packed.stdout.strip(), folder, filter="data")
    return (folder / "package" / "dist").resolve()


def _store_studies(pacs: orthanc.Orthanc) -> dict[str, str]:
    """Store an image and its answer three times; gives kind -> UID of its study."""
    studies = {"boxes": "1.2.3.41", "no box": "1.2.3.42", "no coordinates": "1.2.3.43"}
    with Decoder(ImagesConfig(), workers=1) as decoder:
        for number, (kind, uid) in enumerate(studies.items()):
            image = answers.radiograph(
                ramp(512, 400),
                StudyInstanceUID=uid,
                SeriesInstanceUID=f"{uid}.1",
                SOPInstanceUID=f"{uid}.2",
                PatientID=f"P{number}",
            )
            present = () if kind == "no box" else ("effusion", "pneumonia")
            answer = answers.answer_of(512, 400, present)
            for data in (image, *(o.data for o in answers.results_of(image, decoder, answer))):
                stored = _without_coordinates(data) if kind == "no coordinates" else data
                answered = httpx.post(f"{pacs.url}/instances", content=stored, trust_env=False)
                answered.raise_for_status()
    return studies


def _without_coordinates(data: bytes) -> bytes:
    """Take the coordinates out of the first measurement group of a report."""
    report = pydicom.dcmread(io.BytesIO(data))
    if report.Modality != "SR":
        return data
    (measurements,) = (
        item
        for item in report.ContentSequence
        if item.ConceptNameCodeSequence[0].CodeMeaning == "Imaging Measurements"
    )
    group = measurements.ContentSequence[0]
    group.ContentSequence = [
        item for item in group.ContentSequence if item.ValueType not in {"SCOORD", "IMAGE"}
    ]
    stream = io.BytesIO()
    report.save_as(stream)
    return stream.getvalue()


def _texts(page: Page, url: str, kind: str) -> list[str]:
    """Open a study and its report; gives the labels on the image."""
    page.open(url, width=1600, height=900)
    thumbnails = "[...document.querySelectorAll('[data-cy^=study-browser-thumbnail]')]"
    page.until(f"{thumbnails}.some((item) => item.innerText.includes('findings'))", _PATIENCE_S)
    page.js(  # the notice of a first visit
        "[...document.querySelectorAll('button')].filter((item) => "
        "item.innerText === 'Confirm and hide').forEach((item) => item.click())"
    )
    page.js(
        f"{thumbnails}.find((item) => item.innerText.includes('findings'))"
        ".dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))"
    )
    labels = "[...document.querySelectorAll('svg.svg-layer tspan')].map((item) => item.textContent)"
    end = time.monotonic() + (_BLACK_AFTER_S if kind == "no coordinates" else _PATIENCE_S)
    while not (found := page.js(labels)) and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(1)  # until everything is drawn
    return found


if __name__ == "__main__":
    sys.exit(main())
