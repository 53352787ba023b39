"""The model without a service, in the main thread of a process that does nothing else.

    python -m benchmarks.speed.serve.bare MODEL

Each line on standard input, `IMAGES TIMES`, is answered by a JSON line with the median CPU and wall
seconds of an image in forward passes over that many ready tensors.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models.image_encoder import to_input


def main() -> int:
    """Answer until standard input ends."""
    torch.set_num_threads(1)
    predictor = load(Path(sys.argv[1]), "cpu")
    print(json.dumps([]), flush=True)
    for line in sys.stdin:
        images, times = map(int, line.split())
        print(json.dumps(_timed(predictor, images, times)), flush=True)
    return 0


def _timed(predictor: Predictor, images: int, times: int) -> list[float]:
    """Measure, after one pass to warm up."""
    size = predictor.config.images.size_px
    pixels = np.random.default_rng(0).integers(0, 256, (images, size, size)).astype(np.uint8)
    ready = to_input(pixels, predictor.config.model.image.input_px)
    ready = ready.contiguous(memory_format=torch.channels_last)
    seconds: list[tuple[float, float]] = []
    for _ in range(times + 1):
        cpu, wall = time.thread_time(), time.perf_counter()
        with torch.inference_mode():
            predictor.engine.encode_images(ready)
        seconds.append((time.thread_time() - cpu, time.perf_counter() - wall))
    return [statistics.median(column) / images for column in zip(*seconds[1:], strict=True)]


if __name__ == "__main__":
    sys.exit(main())
