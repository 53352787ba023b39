"""Does a model's range hold images of its own source, and leave out CT, limbs and screenshots?

    make demo && TEST_DATA=... python -m benchmarks.input_range [--quick]

Sources, each with the range that `train` would publish for its training images:

    demo        generated radiographs, by the finished run of `configs/demo.yaml`
    covid_cxr   as `configs/covid_cxr.yaml` reads it: a small set from many hospitals
    open_i      frontal images of Open-i, a fifth of the patients held out

Held against bars: at most 2 % of the source's test images are out of range (`own`), and at least
95 % of each of these: `ct`, `limb` and `screenshot`, made by rule; `ct_real` and `limb_real`, one
real slice of a head and one real lower leg, cut, turned and windowed, so that these are copies of
one patient each; `page`, the kept pictures of our own report and viewer. Without a bar: lateral
images of Open-i and the images of the other sources. The bars were fixed beforehand; the features
were chosen among ten sets of them, on these sources and other images of these kinds.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from benchmarks.method.real_studies.studies import read_patients
from benchmarks.record import ROOT, finish, judge
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest, prepared, selection
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import MedclipError
from medclip_dcl.input_range import fit_input_range, is_out_of_range
from medclip_dcl.model_package import InputRange
from medclip_dcl.settings import resolve_path
from medclip_dcl.tables import read_table, spread_rows
from medclip_sources import readers
from pipelines.config import Config, load_config
from testing import unlike
from testing.unlike import Grey

DEMO, COVID = Path("configs/demo.yaml"), Path("configs/covid_cxr.yaml")
MOST_OWN, LEAST_OTHER = "<= 0.02", ">= 0.95"
SEED = 1000
_MOST_IMAGES = 2048  # that a range is fitted to, as in training
_REAL = {
    "ct_real": "ct_j2k_pixelrep_mismatch",
    "limb_real": "cr_extremity_j2k_lossless_mono1_10bit",
}
_PAGES = ("report.jpg", "viewer.jpg")
Sample = tuple[Grey, str]
"""A prepared image, and its patient."""


class Preparing:
    """Reads images as the service does, to the size that a recipe asks for."""

    def __init__(self, decoder: Decoder, size_px: int) -> None:
        self._decoder, self.size_px = decoder, size_px

    def file(self, path: Path | bytes) -> Grey:
        """Prepare a file."""
        return self._decoder.square(path, self.size_px, equalize=False).pixels

    def grey(self, grey: Grey) -> Grey:
        """Prepare an image that is in memory."""
        stream = io.BytesIO()
        Image.fromarray(grey).save(stream, "PNG")
        return self.file(stream.getvalue())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where there is neither a demo nor real data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input_range")
    parser.add_argument("--quick", action="store_true", help="fewer images")
    quick = parser.parse_args(argv).quick
    data = Path(os.environ["TEST_DATA"]) if os.environ.get("TEST_DATA") else None
    figures: dict[str, float] = {}
    with Decoder(ImagesConfig(), 1) as decoder:
        preparing = Preparing(decoder, load_config(DEMO).images.size_px)
        try:
            sources = dict(_sources(preparing, data, 800 if quick else 2400))
        except MedclipError as error:
            print(error, file=sys.stderr)
            return 1
        others = {kind: list(images) for kind, images in _others(preparing, data, quick)}
    if not sources:
        print("neither a finished demo nor TEST_DATA; run `make demo`", file=sys.stderr)
        return 1
    for name, splits in sources.items():
        train = [splits["train"][row] for row in spread_rows(len(splits["train"]), _MOST_IMAGES)]
        known = fit_input_range(*zip(*train, strict=True))
        beyond = partial(_share, known)
        figures[f"{name}_train_images"] = len(train)
        figures[f"{name}_test_images"] = len(splits["test"])
        figures[f"{name}_own"] = beyond([pixels for pixels, _ in splits["test"]])
        figures |= {f"{name}_{kind}": beyond(images) for kind, images in others.items()}
        figures |= {
            f"{name}_on_{other}": beyond([pixels for pixels, _ in found["test"]])
            for other, found in sources.items()
            if other != name
        }
    return finish("input_range", figures, judge(figures, bars_of(figures)))


def bars_of(figures: Iterable[str]) -> dict[str, str]:
    """Say which figure is held against which bar."""
    kinds = (*unlike.KINDS, *_REAL, "page")
    bars = {name: MOST_OWN for name in figures if name.endswith("_own")}
    return bars | {
        name: LEAST_OTHER for name in figures if name.endswith(tuple(f"_{kind}" for kind in kinds))
    }


def _share(known: InputRange, images: Sequence[Grey]) -> float:
    return float(np.mean([is_out_of_range(image, known) for image in images]))


def _sources(
    preparing: Preparing, data: Path | None, most: int
) -> Iterator[tuple[str, dict[str, list[Sample]]]]:
    demo = load_config(DEMO)
    if (resolve_path(demo.work, demo.work) / "prepared").is_dir():
        yield "demo", _of_run(resolve_path(demo.work, demo.work))
    if data is None:
        return
    yield "covid_cxr", _of_config(load_config(COVID), preparing)
    patients = read_patients(data / "openi")
    split_of = manifest.assign_splits([item.uid for item in patients], {}, (), 0, 0.2)
    found: dict[str, list[Sample]] = {"train": [], "test": []}
    for patient in patients[:most]:
        for image in patient.images:
            pixels = preparing.file(data / "openi" / image)
            found[split_of[patient.uid]].append((pixels, patient.uid))
    yield "open_i", found


def _of_run(work: Path) -> dict[str, list[Sample]]:
    listed = open_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT)
    images = PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT))
    found: dict[str, list[Sample]] = {}
    for row in read_table(listed.path, manifest.IMAGES).to_pylist():
        if row["image_id"] in images.row_of:
            pixels = images.pixels(images.row_of[row["image_id"]])
            found.setdefault(row["split"], []).append((pixels, row["subject_id"]))
    return found


def _of_config(config: Config, preparing: Preparing) -> dict[str, list[Sample]]:
    source = readers.read_source(config.source, lambda text: resolve_path(text, config.work))
    chosen = selection.select(source.raw, config.source)
    split_of = manifest.split_patients(source, chosen, config.source)
    found: dict[str, list[Sample]] = {}
    for image in chosen.images:
        pixels = preparing.file(source.raw.root / image.path)
        found.setdefault(split_of[image.subject_id], []).append((pixels, image.subject_id))
    return found


def _others(
    preparing: Preparing, data: Path | None, quick: bool
) -> Iterator[tuple[str, Iterable[Grey]]]:
    count = 60 if quick else 300
    for kind, make in unlike.KINDS.items():
        yield kind, [preparing.grey(make(SEED + number)) for number in range(count)]
    rng = np.random.default_rng(SEED)
    pages = [_opened(ROOT / "benchmarks/results" / name) for name in _PAGES]
    cuts = [_cut(page, rng, least=0.8) for page in pages for _ in range(10)]
    yield "page", [preparing.grey(page) for page in (*pages, *cuts)]
    if data is None:
        return
    for kind, file in _REAL.items():
        real = preparing.file(data / "dicom" / "files" / f"{file}.dcm")
        copies = [preparing.grey(_copy(real, rng)) for _ in range(count)]
        yield kind, [real, *copies]
    yield "lateral", [preparing.file(path) for path in _lateral(data / "openi", count)]


def _opened(path: Path) -> Grey:
    return np.asarray(Image.open(path).convert("L"))


def _cut(image: Grey, rng: np.random.Generator, least: float) -> Grey:
    """Cut a part of at least this share of each side."""
    height, width = (int(side * rng.uniform(least, 1)) for side in image.shape)
    top = rng.integers(image.shape[0] - height + 1)
    left = rng.integers(image.shape[1] - width + 1)
    return np.ascontiguousarray(image[top : top + height, left : left + width])


def _copy(image: Grey, rng: np.random.Generator) -> Grey:
    """Mirror, cut, turn and window an image."""
    part = _cut(image[:, :: rng.choice([1, -1])], rng, least=0.75).astype(np.float64)
    part = ndimage.rotate(part, rng.uniform(-12, 12), reshape=False, mode="nearest", order=1)
    low, high = np.quantile(part, [rng.uniform(0, 0.03), rng.uniform(0.97, 1)])
    level: npt.NDArray[np.float64] = np.clip((part - low) / max(high - low, 1), 0, 1)
    return np.rint(255 * level ** rng.uniform(0.7, 1.4)).astype(np.uint8)


def _lateral(root: Path, count: int) -> list[Path]:
    names = []
    with (root / "reports.jsonl").open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            for item in row["images"]:
                if item["projection"] == "Lateral":
                    names.append(item["filename"].replace(".png", ".jpg"))
    return [root / "images" / name for name in names[:count]]


if __name__ == "__main__":
    sys.exit(main())
