"""The same model behind LitServe, as its documentation says: one worker, batches of eight.

python -m benchmarks.speed.serve.litserve_baseline MODEL PORT [ENGINE PRECISION]
"""

import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import numpy.typing as npt
import torch
from fastapi import Request

from medclip_dcl.data.decode_worker import read_image
from medclip_dcl.data.grayscale import stretch
from medclip_dcl.inference.predictor import load

BATCH, BATCH_TIMEOUT_S = 8, 0.005


class Classifier(litserve.LitAPI):  # type: ignore[misc]
    """Findings of an image; it is decoded without isolation, in the process of the model."""

    def setup(self, device: str) -> None:
        """Load the model."""
        torch.set_num_threads(1)
        self.predictor = load(Path(sys.argv[1]), device, *sys.argv[3:])

    def decode_request(self, request: Request) -> npt.NDArray[np.uint8]:
        """Make an image's square of a form."""
        images = self.predictor.config.images
        image = read_image(request["image"].file.read(), images)
        words, table = image.shades.words, image.shades.table
        return stretch(words, table, images.size_px, images.equalize)

    def predict(self, images: npt.NDArray[np.uint8]) -> list[Any]:
        """Answer a batch of images."""
        return self.predictor.classify_regions(self.predictor.embed_images(images))

    def encode_response(self, scores: Any) -> dict[str, Any]:
        """Put an answer into JSON."""
        return {"findings": [vars(score) for score in scores]}


def main() -> None:
    """Serve until stopped."""
    api = Classifier(max_batch_size=BATCH, batch_timeout=BATCH_TIMEOUT_S)
    server = litserve.LitServer(api, accelerator="cpu", timeout=120, track_requests=False)
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), log_level="error", generate_client_file=False
    )


if __name__ == "__main__":
    main()
