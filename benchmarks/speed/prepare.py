"""Image file -> 512 x 512 picture: the gate, isolation on, against a plain loop in one process.

    python -m benchmarks.speed.prepare [--quick]

The rival reads the file with pydicom or Pillow, scales it by minimum and maximum in float32
and resizes it with Pillow's bicubic filter; its code is written out below. Ours does the
same in a worker process under its deadline and memory cap. Both handle the same images in
turn, on one core each; ratios are of CPU time, all processes counted.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pydicom
from PIL import Image, ImageDraw, ImageFont

from benchmarks.record import finish, is_quick, judge
from benchmarks.speed.timing import cpu_ms, interleaved, wall_ms
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from tests.support.dicom import dicom_bytes, raster_bytes
from tests.support.processes import cpu_s

ROWS, COLUMNS, SIZE_PX = 3000, 2500, 512
IMAGES = 4
BARS = {
    "dicom_ratio": ">= 1.2",
    "jpeg_ratio": ">= 1.5",
    **{f"{kind}_max_difference": "<= 2.0" for kind in ("dicom", "jpeg")},
    **{f"{kind}_mean_difference": "<= 0.5" for kind in ("dicom", "jpeg")},
}
"""Differences are in levels of 255."""
_JPEG_QUALITY = 95  # MIMIC-CXR-JPG's


def rival_dicom(path: Path) -> npt.NDArray[np.float32]:
    """The plain loop for DICOM."""
    pixels = pydicom.dcmread(path).pixel_array.astype(np.float32)
    return rival_square(pixels)


def rival_jpeg(path: Path) -> npt.NDArray[np.float32]:
    """The plain loop for JPEG."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L"), dtype=np.float32)
    return rival_square(pixels)


def rival_square(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Minimum and maximum to 0 and 255, then Pillow's bicubic filter in float32."""
    low, high = pixels.min(), pixels.max()
    scaled = Image.fromarray((pixels - low) * np.float32(255 / (high - low)))
    small = scaled.resize((SIZE_PX, SIZE_PX), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(small), 0, 255)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    rounds = 5 if is_quick(argv) else 25
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, Decoder(ImagesConfig(), 1) as decoder:
        images = [draw_image(seed) for seed in range(IMAGES)]
        files: dict[str, list[Path]] = {"dicom": [], "jpeg": []}
        for number, image in enumerate(images):
            words = np.rint(image * 60000 + 1000).astype(np.uint16)
            grey = np.rint(image * 255).astype(np.uint8)
            for kind, data in (
                ("dicom", dicom_bytes(words, bits_stored=16)),
                ("jpeg", raster_bytes(grey, "jpeg", quality=_JPEG_QUALITY)),
            ):
                files[kind].append(Path(folder) / f"{number}.{kind}")
                files[kind][-1].write_bytes(data)
        for kind, baseline in (("dicom", rival_dicom), ("jpeg", rival_jpeg)):
            found = compare(decoder, baseline, files[kind], rounds)
            figures |= {f"{kind}_{name}": value for name, value in found.items()}
    return finish("prepare", figures, judge(figures, BARS))


def compare(
    decoder: Decoder,
    baseline: Callable[[Path], npt.NDArray[np.float32]],
    paths: Sequence[Path],
    rounds: int,
) -> dict[str, float]:
    """Time both on the same images of one format in turn, after one round to warm up.

    Gives milliseconds an image, CPU and wall, ratio of CPU times, differences in levels of 255.
    """
    gaps = [np.abs(_ours(decoder, path) - baseline(path)) for path in paths]
    (worker,) = psutil.Process().children()
    times = interleaved(
        {
            "theirs": lambda number: baseline(paths[number % len(paths)]),
            "ours": lambda number: _ours(decoder, paths[number % len(paths)]),
        },
        rounds * len(paths),
        warm_up=0,
        clock=lambda: time.process_time() + cpu_s(worker.pid),
    )
    figures = {"cpu_ms": cpu_ms(times, "ours"), "wall_ms": wall_ms(times, "ours")}
    figures |= {"rival_cpu_ms": cpu_ms(times, "theirs"), "rival_wall_ms": wall_ms(times, "theirs")}
    return {
        "ratio": figures["rival_cpu_ms"] / figures["cpu_ms"],
        "wall_ratio": figures["rival_wall_ms"] / figures["wall_ms"],
        **figures,
        "max_difference": max(float(gap.max()) for gap in gaps),
        "mean_difference": max(float(gap.mean()) for gap in gaps),
    }


def draw_image(seed: int) -> npt.NDArray[np.float64]:
    """Draw an image in [0, 1]: soft shadows, grain, black collimation and white letters."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:ROWS, :COLUMNS].astype(np.float32)
    image = 0.5 + 0.2 * np.sin(x / rng.uniform(150, 400)) * np.cos(y / rng.uniform(150, 400))
    image += 0.08 * np.sin((x + 2 * y) / rng.uniform(6, 20))  # ribs, and what is finer
    image += 0.01 * rng.standard_normal(image.shape, dtype=np.float32)
    letters = Image.new("L", (COLUMNS, ROWS))
    draw = ImageDraw.Draw(letters)
    draw.text((200, 200), "L  PA", fill=255, font=ImageFont.load_default(160))
    draw.text((1500, 2700), "ERECT 120 kV", fill=255, font=ImageFont.load_default(48))
    image[np.asarray(letters) > 127] = 1.0
    image[:, : int(rng.integers(40, 160))] = 0.0
    return np.clip(image, 0, 1)


def _ours(decoder: Decoder, path: Path) -> npt.NDArray[np.float32]:
    return decoder.square(path, SIZE_PX, equalize=False).pixels.astype(np.float32)


if __name__ == "__main__":
    sys.exit(main())
