"""What the gate for pictures makes of bombs and of damaged files.

    python -m benchmarks.reliability.fuzz [--quick | --long]

Every bomb must be refused for one of its reasons; a mutant, of a made-up or a real image
(TEST_DATA), must give a picture or a typed refusal. Nothing may take longer than ten seconds, and
the caller, which is this process, may neither die nor grow by more than 256 MiB.
"""

import argparse
import io
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import imagecodecs
import numpy as np
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.pixels.encoders import RLELosslessEncoder

from benchmarks.record import finish, judge
from benchmarks.reliability.mutants import Seed, pick, read_seed
from medclip_dcl.core.errors import ImageError
from medclip_dcl.core.progress import Progress
from medclip_dcl.data.dicom.metadata import SYNTAXES
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import REASONS, ImagesConfig
from tests.support.bombs import BOMBS
from tests.support.dicom import dicom_bytes, raster_bytes

MUTANTS = {"quick": 2_000, "normal": 5_000, "long": 1_000_000}
WORKERS = 2
_AT_ONCE = 1_000  # mutants that are handed to the threads
LIMIT_S = 10.0
_SEED_BYTES = 200_000  # larger real images are left to the manifest
_SHOWN = 10
_ODD = {"deadline", "worker_died", "memory"}
_TOP = 65535


def ask(decoder: Decoder, source: bytes) -> tuple[str, float]:
    """Put one file through the gate: what became of it, and the seconds that it took.

    It became an `image`, one of `REASONS`, or `escape: ` and what went wrong.
    """
    start = time.monotonic()
    try:
        picture = decoder.open(source)
        reason = "image" if _is_sound(picture) else "escape: not a picture"
    except ImageError as error:
        reason = error.code if error.code in REASONS else f"escape: code {error.code}"
    except Exception as error:  # noqa: BLE001 (that nothing else comes out is what is measured)
        reason = f"escape: {type(error).__name__}"
    return reason, time.monotonic() - start


def try_bombs(decoder: Decoder) -> dict[str, float]:
    """Open every bomb: counts, and seconds of the slowest."""
    astray, slowest = 0, 0.0
    for name, bomb in BOMBS.items():
        data = bomb.make()
        reason, seconds = ask(decoder, data)
        right = reason in bomb.reasons
        astray += not right
        slowest = max(slowest, seconds)
        print(
            f"    {name:26} {len(data):>9} bytes  {reason:18} {seconds:5.2f} s"
            f" {'' if right else 'ASTRAY'}"
        )
    return {"bombs": len(BOMBS), "bombs_astray": astray, "bombs_slowest_s": slowest}


def try_mutants(decoder: Decoder, name: str, seeds: Sequence[Seed], count: int) -> dict[str, float]:
    """Open many mutants of the sound files.

    `name` and a number name a mutant for good. Gives counts, seconds of the slowest, and
    milliseconds a mutant.
    """
    for seed in seeds:
        assert ask(decoder, seed.data)[0] in {"image", *REASONS}
    reasons, odd, slowest_s, late = Counter[str](), list[str](), 0.0, 0
    start = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as threads, Progress(name, count, "mutant") as progress:
        for first in range(0, count, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, count))
            outcomes = threads.map(lambda at: ask(decoder, pick(seeds, name, at)), numbers)
            for number, (reason, seconds) in zip(numbers, outcomes, strict=True):
                reasons[reason] += 1
                slowest_s, late = max(slowest_s, seconds), late + (seconds > LIMIT_S)
                if reason in _ODD or "escape" in reason or seconds > LIMIT_S:
                    odd.append(f"{number} ({reason}, {seconds:.1f} s)")
            progress.advance(len(numbers))
    milliseconds = 1e3 * (time.monotonic() - start) / count
    print(f"{name}: {count} mutants of {len(seeds)} files, {milliseconds:.1f} ms each")
    for reason, times in reasons.most_common():
        print(f"    {reason:24} {times:>7}")
    if odd:
        print(f"    by number: {', '.join(odd[:_SHOWN])}")
    return {
        name: sum(reasons.values()),
        f"{name}_images": reasons["image"],
        f"{name}_escapes": sum(times for why, times in reasons.items() if "escape" in why),
        f"{name}_late": late,
        f"{name}_worker_died": reasons["worker_died"],
        f"{name}_deadline": reasons["deadline"],
        f"{name}_slowest_s": slowest_s,
        f"{name}_ms": milliseconds,
    }


def dicom_seeds() -> Iterator[bytes]:
    """Make a small image in every transfer syntax that is read, and with unusual tags."""
    image = _image()
    grey = (image >> 4).astype(np.uint8)
    lossless = bytes(imagecodecs.ljpeg_encode(image, bitspersample=12))
    twelve_bits = bytes(imagecodecs.jpeg8_encode(image, bitspersample=12))
    streams = {
        "rle": [(image, _run_lengths(image))],
        "dct": [(grey, raster_bytes(grey, "jpeg")), (image, twelve_bits)],
        "lossless": [(image, lossless)],
        "ls": [(image, bytes(imagecodecs.jpegls_encode(image)))],
        "j2k": [
            (image, bytes(imagecodecs.jpeg2k_encode(image, codecformat=form, level=level)))
            for form, level in (("j2k", 0), ("jp2", 40))
        ],
    }
    for syntax, form in SYNTAXES.items():
        if form.decoder:
            for pixels, frame in streams[form.decoder]:
                yield dicom_bytes(pixels, syntax=syntax, frame=frame)
        else:
            yield dicom_bytes(image, syntax=syntax)
    table = Dataset()
    table.LUTDescriptor, table.ModalityLUTType = [4096, 0, 16], "US"
    table.add_new("LUTData", "OW", np.arange(4096, dtype="<u2").tobytes())
    for tags in (
        {"ModalityLUTSequence": [table]},
        {"RescaleSlope": "2", "RescaleIntercept": "-1024", "PixelPaddingValue": ("US", 7)},
        {"WindowCenter": ["40", "400"], "WindowWidth": ["80", "2000"], "PixelSpacing": [0.1, 0.1]},
    ):
        yield dicom_bytes(image, **tags)
    yield dicom_bytes(image.astype(np.int16), photometric="MONOCHROME1", bits_stored=16)


def raster_seeds() -> Iterator[bytes]:
    """Make small JPEG and PNG files of every kind that Pillow writes."""
    image = _image()
    grey = (image >> 4).astype(np.uint8)
    colours = np.dstack([grey, grey[::-1], grey])
    turned = Image.Exif()
    turned[274] = 6
    yield raster_bytes(grey, "jpeg")
    yield raster_bytes(grey, "jpeg", progressive=True, optimize=True)
    yield raster_bytes(grey, "jpeg", restart_marker_blocks=2, exif=turned, comment=b"an image")
    yield raster_bytes(colours, "jpeg", subsampling=2)
    yield _saved(Image.fromarray(colours).convert("CMYK"), "jpeg")
    yield raster_bytes(grey, "png")
    yield raster_bytes(image, "png")
    yield raster_bytes(colours, "png", exif=turned)
    yield raster_bytes(np.dstack([colours, grey]), "png")
    for mode in ("1", "P", "LA"):
        yield _saved(Image.fromarray(colours).convert(mode), "png")
    yield raster_bytes(grey, "png", transparency=9, dpi=(300, 300), icc_profile=bytes(200))


def real_seeds(pattern: str) -> Iterator[bytes]:
    """Read real images that are small, where TEST_DATA names a folder that holds some."""
    folder = os.environ.get("TEST_DATA", "")
    paths = sorted(Path(folder).glob(pattern)) if folder else []
    for path in paths[:60]:
        if 1000 < path.stat().st_size < _SEED_BYTES:
            yield path.read_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Try bombs and mutants; 1 where a worker could not be started at all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.fuzz")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    arguments = parser.parse_args(argv)
    count = MUTANTS[arguments.tier or "normal"]
    figures: dict[str, float] = {}
    with Decoder(ImagesConfig(), WORKERS) as decoder:
        ask(decoder, next(raster_seeds()))
        before = _peak_mib(resource.RUSAGE_SELF)
        figures |= try_bombs(decoder)
        of_dicom = [*map(read_seed, dicom_seeds())]
        of_dicom += map(read_seed, real_seeds("dicom/files/*.dcm"))
        figures |= try_mutants(decoder, "dicom_mutants", of_dicom, count)
        of_raster = [*map(read_seed, raster_seeds())]
        of_raster += map(read_seed, real_seeds("covid_cxr/images/*.jpg"))
        figures |= try_mutants(decoder, "raster_mutants", of_raster, count)
        figures["caller_growth_mib"] = _peak_mib(resource.RUSAGE_SELF) - before
    figures["worker_peak_mib"] = _peak_mib(resource.RUSAGE_CHILDREN)
    bars = {name: "0" for name in figures if name.endswith(("_astray", "_escapes", "_late"))}
    bars |= {"caller_growth_mib": "<= 256", "bombs_slowest_s": f"<= {LIMIT_S:.0f}"}
    return finish("fuzz", figures, judge(figures, bars))


def _is_sound(picture: GreyImage) -> bool:
    pixels = picture.pixels
    if pixels.ndim != 2 or pixels.dtype != np.uint16:
        return False
    ends = (0, 0) if picture.constant else (0, _TOP)
    return (int(pixels.min()), int(pixels.max())) == ends


def _image() -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 300, (40, 48))
    return (noise + np.linspace(0, 3700, 40 * 48).reshape(40, 48)).astype(np.uint16)


def _run_lengths(image: np.ndarray) -> bytes:
    return RLELosslessEncoder.encode(
        image,
        rows=image.shape[0],
        columns=image.shape[1],
        samples_per_pixel=1,
        number_of_frames=1,
        bits_allocated=16,
        bits_stored=12,
        pixel_representation=0,
        photometric_interpretation="MONOCHROME2",
        encoding_plugin="pydicom",
    )


def _saved(image: Image.Image, form: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def _peak_mib(who: int) -> float:
    peak = resource.getrusage(who).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    sys.exit(main())
