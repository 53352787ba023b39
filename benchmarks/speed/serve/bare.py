"""The model without a service, in the main thread of a process that does nothing else.

    python -m benchmarks.speed.serve.bare MODEL [ENGINE PRECISION]

Each line on standard input is a question, answered by a JSON line with CPU milliseconds, median and
mean: `forward IMAGES TIMES` of an image in forward passes over ready tensors, `decode FILE TIMES`
of reading an image and making its square, without isolation.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from medclip_dcl.data.decode_worker import read_image
from medclip_dcl.data.grayscale import stretch
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models.image_encoder import to_input


def main() -> int:
    """Answer until standard input ends."""
    torch.set_num_threads(1)
    predictor = load(Path(sys.argv[1]), "cpu", *sys.argv[2:])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        what, subject, times = line.split()
        if what == "decode":
            data = Path(subject).read_bytes()
            work, images = lambda data=data: _decode(data, predictor.config.images), 1
        else:
            images = int(subject)
            work = forward(predictor, images)
        print(json.dumps(_timed(work, images, int(times))), flush=True)
    return 0


def forward(predictor: Predictor, images: int) -> Callable[[], object]:
    """Make a forward pass over ready tensors."""
    size = predictor.config.images.size_px
    pixels = np.random.default_rng(0).integers(0, 256, (images, size, size)).astype(np.uint8)
    ready = to_input(pixels, predictor.config.model.image.input_px)
    ready = ready.contiguous(memory_format=torch.channels_last)

    def run() -> None:
        with torch.inference_mode():
            predictor.engine.encode_images(ready)

    return run


def _decode(data: bytes, images: ImagesConfig) -> None:
    image = read_image(data, images)
    stretch(image.shades.words, image.shades.table, images.size_px, images.equalize)


def _timed(work: Callable[[], object], images: int, times: int) -> dict[str, float]:
    """Median CPU and wall milliseconds an image, and the mean CPU, after one pass to warm up."""
    seconds: list[tuple[float, float]] = []
    for _ in range(times + 1):
        cpu, wall = time.thread_time(), time.perf_counter()
        work()
        seconds.append((time.thread_time() - cpu, time.perf_counter() - wall))
    cpu_ms, wall_ms = (
        1e3 * statistics.median(column) / images for column in zip(*seconds[1:], strict=True)
    )
    cpu_mean_ms = 1e3 * statistics.fmean(cpu for cpu, _ in seconds[1:]) / images
    return {"cpu_ms": cpu_ms, "wall_ms": wall_ms, "cpu_mean_ms": cpu_mean_ms}


if __name__ == "__main__":
    sys.exit(main())
