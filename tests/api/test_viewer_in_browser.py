"""The page in a real browser: each promise by hand, mouse and finger."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.browser import AXE, Page, browsing, find_browser, serious_findings
from tests.support.dicom import dicom_bytes
from tests.support.service import Service, png, running
from tests.support.wire import KEY

READY = """document.querySelectorAll('#findings button').length > 0
    && document.querySelectorAll('#cases li').length > 1"""
PICTURE = "document.querySelector('#image').toDataURL()"
NAMED = "[...document.querySelectorAll('#cases li')].map((item) => item.textContent).join()"


@pytest.fixture(scope="module")
def keyed(published: Path, key_file: Path) -> Iterator[Service]:
    """A service that asks for a key."""
    with running(published, key_file=str(key_file)) as service:
        yield service


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """One tab of an installed browser."""
    binary = find_browser()
    if binary is None:
        pytest.skip("no Chromium is installed here; the variable CHROMIUM can name one")
    with browsing(binary) as page:
        yield page


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A 16-bit image: a ramp above, and below two greys that eight bits could not tell apart."""
    pixels = np.full((96, 64), 30_000, dtype=np.uint16)
    pixels[:32] = np.linspace(0, 65_535, 64)
    pixels[32:, 32:] += 100
    path = tmp_path / "image.dcm"
    path.write_bytes(dicom_bytes(pixels, bits_stored=16))
    return path


def images(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"image-{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(png((96, 64), seed=number))
    return paths


@pytest.fixture
def shown(page: Page, keyed: Service, image: Path) -> Page:
    """The page with an image and its answers."""
    start(page, keyed)
    page.choose_file("#file", image)
    page.until(READY)
    return page


def start(page: Page, service: Service, **window: object) -> None:
    page.errors.clear()
    page.requests.clear()
    page.open(service.url, **window)
    page.js(f"document.querySelector('#key').value = '{KEY}'")


def grey(page: Page, across: float, down: float) -> int:
    """Grey of the image on screen at shares of its width and height."""
    value: int = page.js(
        f"""(() => {{
        const canvas = document.querySelector('#image');
        const [wide, high] = [canvas.width, canvas.height];
        const zoom = 0.97 * Math.min(wide / 64, high / 96);
        const x = (wide - 64 * zoom) / 2 + {across} * 64 * zoom;
        const y = (high - 96 * zoom) / 2 + {down} * 96 * zoom;
        return canvas.getContext('2d').getImageData(x, y, 1, 1).data[0]; }})()"""
    )
    return value


def facts(page: Page) -> tuple[int, int, int]:
    """Centre, width and zoom as the page shows them."""
    page.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    shown = re.search(r"C (-?\d+) W (\d+) · (\d+) %", page.js("facts.textContent"))
    return int(shown[1]), int(shown[2]), int(shown[3])


def test_a_dropped_image_is_shown_with_findings_and_cases_and_nothing_is_asked_elsewhere(
    page: Page, keyed: Service, image: Path
) -> None:
    start(page, keyed)
    x, y = page.middle("#sight")
    page.drop_file(image, x, y)
    page.until(READY)
    assert page.js("document.querySelector('#empty').hidden")
    assert 110 < grey(page, 0.2, 0.8) < 125  # 30,000 of 65,535
    assert page.js("document.querySelectorAll('#findings .number')[0].textContent").startswith("0.")
    assert all(url.startswith((keyed.url, "blob:", "data:")) for url in page.requests)
    assert len(page.requests) > 6
    assert page.errors == []


def test_the_key_is_asked_for_and_kept_in_memory_alone(page, keyed, image):
    page.open(keyed.url)
    page.until("!document.querySelector('#key-form').hidden")
    page.choose_file("#file", image)
    page.until("document.querySelector('#key-label').classList.contains('wanted')")
    page.until("document.activeElement.id === 'key'")
    page.type("wrong" * 8)
    page.key("Enter")
    page.until("document.querySelector('#status').textContent.includes('not know this API key')")
    page.js("key.value = ''")
    page.type(KEY)
    page.key("Enter")
    page.until(READY)
    assert not page.js("document.querySelector('#key-label').classList.contains('wanted')")
    assert page.js("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    assert KEY not in "".join(page.requests)


def test_dragging_opens_a_window_on_sixteen_bits(shown: Page) -> None:
    assert abs(grey(shown, 0.25, 0.8) - grey(shown, 0.75, 0.8)) <= 1
    _, before, _ = facts(shown)
    x, y = shown.middle("#image")
    shown.drag((x + 290, y), (x - 300, y - 25))
    centre, width, _ = facts(shown)
    assert (before, width < 2000) == (65536, True)
    assert abs(centre - 30_050) < 400
    assert abs(grey(shown, 0.25, 0.8) - grey(shown, 0.75, 0.8)) > 10


def test_a_finding_says_what_it_means_and_where(shown: Page) -> None:
    hint = shown.js("meaning.textContent")
    shown.until("document.querySelector('#about-model').textContent")
    shown.hover(*shown.middle("#findings button"))
    text = shown.until("document.querySelector('#meaning b') && meaning.textContent")
    assert "against" in text
    assert "No probability" in text
    plain = shown.js(PICTURE)
    shown.click("#findings button")
    assert shown.js("document.querySelector('#findings button').ariaPressed") == "true"
    with_heat = shown.js(PICTURE)
    assert with_heat != plain
    shown.js("opacity.value = 0; opacity.dispatchEvent(new Event('input'))")
    assert shown.js(PICTURE) == plain
    shown.hover(5, 5)
    assert shown.until("!document.querySelector('#meaning b') && meaning.textContent") == hint


def test_what_does_not_decide_is_said_and_heads_stand_below_the_findings(page, doubtful, tmp_path):
    page.open(doubtful.url)
    page.choose_file("#file", *images(tmp_path, 1))
    page.until("document.querySelector('#findings .refused') !== null")
    marked = "[...document.querySelectorAll('#findings li')].map((item) => item.innerText)"
    effusion, pneumonia, *heads = page.js(marked)
    assert "do not rely on it" in effusion
    assert "do not rely on it" not in pneumonia
    page.hover(*page.middle("#findings button"))
    text = page.until("document.querySelector('#meaning b') && meaning.textContent")
    assert "No probability: no decision." in text
    assert not AXE.is_file() or serious_findings(page) == []
    assert [text.split("\n")[0] for text in heads] == ["tuberculosis (head)", "tube (head)"]
    # Logistic functions of the margin 0.5 and of the threshold 0.
    for row, words in (
        (3, "present (threshold 0.50). Calibrated probability 62 %."),
        (4, "not decided (threshold 0.50). No probability: upside down."),
    ):
        page.hover(*page.middle(f"#findings li:nth-child({row}) button"))
        text = page.js("meaning.textContent")
        assert f" 0.62: a linear head, fitted to labels; {words}" in text
        page.js(f"document.querySelector('#findings li:nth-child({row}) button').click()")
    assert page.js("document.querySelector('#findings form') === null")  # nor is there a map


def test_an_image_out_of_range_has_a_banner_and_grey_bars(page, doubtful, image, tmp_path):
    page.open(doubtful.url)
    page.choose_file("#file", image)
    text = page.until("!document.querySelector('#beyond').hidden && beyond.innerText")
    assert "unlike those that the model was trained on" in text
    bar = "document.querySelector('#findings li:nth-child(2) .bar')"  # the first was refused
    colour = f"getComputedStyle({bar}.querySelector('i')).backgroundColor"
    page.js(f"{bar}.classList.add('present')")
    grey_bar = page.js(colour)
    assert "out of range" not in page.js("flags.innerText")
    assert not AXE.is_file() or serious_findings(page) == []
    page.choose_file("#file", *images(tmp_path, 1))  # within the range
    page.until("document.querySelector('#beyond').hidden && !findings.matches('.beyond, .busy')")
    page.js(f"{bar}.classList.add('present')")
    assert page.js(colour) != grey_bar


def test_a_phrase_is_shown_where_it_is_answered(shown: Page) -> None:
    shown.key("/")
    assert shown.js("document.activeElement.id") == "phrase"
    plain = shown.js(PICTURE)
    shown.type("left pleural effusion")
    shown.key("Enter")
    text = shown.until("peak.textContent")
    assert re.fullmatch(r"Best score -?\d\.\d{3} at x \d+, y \d+ px\.", text)
    assert shown.js(PICTURE) != plain


def test_a_box_is_asked_what_it_shows(shown: Page) -> None:
    shown.click("[data-tool=region]")
    x, y = shown.middle("#image")
    shown.drag((x - 60, y - 60), (x + 60, y + 60))
    shown.until("document.querySelector('#cases-title').textContent === 'What the box shows'")
    assert shown.js("document.querySelector('#tab-texts').ariaSelected") == "true"
    assert "stud" in shown.until(NAMED)
    sent = [url for url in shown.requests if url.endswith("/retrieve")]
    assert len(sent) == 4  # images and sentences, for the image and for the box
    shown.key("Escape")
    shown.until("document.querySelector('#cases-title').textContent === 'Similar cases'")


def test_a_similar_case_stands_beside_the_image_with_its_texts(shown: Page) -> None:
    assert shown.js("beside.hidden")
    whole = shown.js("document.querySelector('#image').clientWidth")
    shown.until("[...document.querySelectorAll('#cases img')].every((item) => item.naturalWidth)")
    shown.click("#cases li:nth-child(2) button")
    assert not shown.js("beside.hidden")
    shown.until("document.querySelector('#beside-image').width > 10")
    words = shown.js("document.querySelector('#beside-words').textContent")
    assert words.split(".")[0] in shown.js(NAMED)
    assert shown.js("document.querySelector('#image').clientWidth") < 0.6 * whole
    shown.key("Escape")
    assert shown.js("beside.hidden")


def test_a_refused_file_is_named_and_the_image_stays(shown: Page, tmp_path: Path) -> None:
    before = shown.js(PICTURE)
    bad = tmp_path / "JaneDoe.png"
    bad.write_bytes(png()[:60])
    shown.choose_file("#file", bad)
    text = shown.until("document.querySelector('#status.shown')?.textContent")
    assert "corrupt" in text
    assert shown.js(PICTURE) == before


@pytest.mark.parametrize(
    ("size", "dark"), [((1366, 768), True), ((820, 1180), False), ((390, 844), True)]
)
def test_the_page_fits_desks_and_tablets_and_can_be_read(page, keyed, size, dark):
    touch = size != (1366, 768)
    start(page, keyed, width=size[0], height=size[1], touch=touch, dark=dark)
    assert page.js("document.documentElement.scrollWidth") <= size[0]
    assert page.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    low = page.js(
        """[...document.querySelectorAll('button')].filter((item) => item.offsetHeight > 0)
        .map((item) => item.offsetHeight).reduce((a, b) => Math.min(a, b))"""
    )
    assert low >= (40 if touch else 24)
    cut = f"(item) => item.getBoundingClientRect().right > {size[0]}"
    assert not page.js(f"[...document.querySelectorAll('button')].some({cut})")
    assert "not a medical device" in page.js("document.body.innerText")
    page.click("#theme")
    other = "light" if dark else "dark"
    assert page.until(f"document.documentElement.dataset.theme === '{other}'")
    page.open(keyed.url, width=size[0], height=size[1], touch=touch, dark=dark)  # remembered
    assert page.js("document.documentElement.dataset.theme") == other
    page.click("#theme")


def test_every_control_can_be_reached_by_tab(shown: Page) -> None:
    shown.js("document.body.focus()")
    reached = set()
    for _ in range(40):
        shown.key("Tab")
        reached.add(shown.js("document.activeElement.id || document.activeElement.tagName"))
        outline = shown.js("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or shown.js("document.activeElement === document.body")
    assert {"open", "image", "reset", "phrase", "opacity", "tab-images", "BUTTON"} <= reached


def test_a_worklist_is_gone_through_while_one_image_stays_pinned(page, keyed, tmp_path):
    start(page, keyed)
    page.choose_file("#file", *images(tmp_path, 3))
    page.until(READY)
    assert page.js("files.selectedOptions[0].textContent") == "1 of 3: image-0.png"
    page.key("c")
    page.key("j")
    page.until("files.value === '1'")
    assert page.js("document.querySelector('#beside-name').textContent") == "image-0.png"
    pictures = "['image', 'beside-image'].map((id) => document.getElementById(id).toDataURL())"
    before = page.js(pictures)
    x, y = page.middle("#image")
    page.wheel(x, y, -300)
    page.key("i")
    facts(page)
    assert all(old != new for old, new in zip(before, page.js(pictures), strict=True))
    page.key("k")
    page.until("files.value === '0'")
    assert page.js("document.querySelector('#previous').disabled")
    assert page.errors == []


def test_a_finding_is_asked_in_other_words(shown: Page) -> None:
    shown.until("document.querySelector('#about-model').textContent")
    shown.click("#findings button")
    assert shown.js("document.querySelector('.wording textarea').value") == "Pleural effusion"
    shown.js("document.querySelector('.wording textarea').value = 'Fluid'")
    shown.click(".wording button")
    shown.until("document.querySelector('#findings li').innerText.includes('your words')")
    assert shown.js("document.querySelector('.wording textarea').value") == "Fluid"
    assert "found" in shown.js("peak.textContent")


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core here; make puts it into .venv/axe")
@pytest.mark.parametrize("dark", [True, False])
def test_axe_finds_nothing_serious(page: Page, keyed: Service, tmp_path: Path, dark: bool) -> None:
    start(page, keyed, width=1366 if dark else 390, height=844, dark=dark)
    assert serious_findings(page) == []
    page.choose_file("#file", *images(tmp_path, 2))
    page.until(READY)
    page.until("document.querySelector('#about-model').textContent")
    page.click("#findings button")
    page.click("#cases li:nth-child(2) button")
    assert serious_findings(page) == []
    page.js("document.querySelector('#about').showModal()")
    assert serious_findings(page) == []
