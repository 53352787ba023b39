"""A tiny model with an index of tiny images, and the service as a real process over HTTP."""

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from medclip_dcl.artifact import make_fingerprint, write_artifact
from medclip_dcl.data.manifest import IMAGES
from medclip_dcl.inference.predictor import load
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.index import select, write_index
from medclip_dcl.retrieval.settings import IndexConfig
from medclip_dcl.text.sentences import SENTENCES, text_key
from tests.synthetic import published
from tests.synthetic.films import random_images

N_IMAGES = 12
FINDINGS = ("Pleural Effusion", "No Finding")
"""Of studies with an even and with an odd number."""
PATIENCE_S = 90.0
ROOT = Path(__file__).parents[2]


class PixelRows:
    """Prepared images, held in memory."""

    def __init__(self, images: npt.NDArray[np.uint8]) -> None:
        self._images = images
        self.row_of = {f"image-{row:02d}": row for row in range(len(images))}

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        return self._images[row]

    def original_size(self, row: int) -> tuple[int, int]:
        return 96, 64


def store(folder: Path, model_digest: str | None = None, seed: int = 0) -> Path:
    """Seal a tiny model and its index below a folder; each study says two sentences."""
    model = published.publish(folder / "model", seed=seed)
    pixels = PixelRows(random_images(N_IMAGES))
    ids = list(pixels.row_of)
    splits = ["train", "validate", "test"]
    images = [
        {
            "image_id": name,
            "study_id": f"study-{row:02d}",
            "subject_id": f"patient-{row // 2}",
            "split": splits[row // 2 % 3],
            "view": "AP" if row % 2 else "PA",
            "path": "",
        }
        for row, name in enumerate(ids)
    ]
    texts = [
        {
            "study_id": f"study-{row:02d}",
            "subject_id": f"patient-{row // 2}",
            "split": splits[row // 2 % 3],
            "section": "findings",
            "position": position,
            "text": text,
            "text_key": text_key(text),
        }
        for row in range(N_IMAGES)
        for position, text in enumerate(
            (published.SENTENCES[row % 7], published.SENTENCES[(row + 3) % 7])
        )
    ]
    settings = IndexConfig(thumbnail_px=48)
    chosen = select(
        pa.Table.from_pylist(images, schema=IMAGES.schema),
        pa.Table.from_pylist(texts, schema=SENTENCES.schema),
        {f"study-{row:02d}": [FINDINGS[row % 2]] for row in range(N_IMAGES)},
        pixels,
        splits,
    )
    predictor = load(model.path, "cpu")
    fingerprint = make_fingerprint(
        ARTIFACT,
        {"index": settings, "similarity": predictor.config.model.similarity},
        {"model": model_digest or model.digest},
    )
    with write_artifact(folder / "index", ARTIFACT, fingerprint) as writer:
        writer.commit(
            write_index(
                writer.directory,
                chosen,
                pixels,
                predictor,
                settings,
                predictor.config.model.similarity,
            )
        )
    return folder


def png(size: tuple[int, int] = (96, 64), seed: int = 3) -> bytes:
    """An image as a PNG, height and width given."""
    image = Image.fromarray(random_images(1, seed=seed)[0]).resize((size[1], size[0]))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


@dataclass
class Service:
    """A running service."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


@contextmanager
def running(
    folder: Path, *arguments: str, wait: bool = True, **settings: object
) -> Iterator[Service]:
    """Start `python -m api` on a free port; stop it at the end."""
    tree = {"model": str(folder / "model"), "index": str(folder / "index"), **settings}
    if "key_file" not in settings:
        tree.setdefault("allow_anonymous", True)
    folder = Path(tempfile.mkdtemp(dir=folder))
    config, log = folder / "serve.json", folder / "log.jsonl"
    config.write_text(json.dumps(tree))
    with log.open("w") as stream:
        process = subprocess.Popen(
            command(config, "--port", "0", *arguments),
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            assert process.stdout is not None
            service = Service(process, json.loads(process.stdout.readline())["url"], log)
            if wait:
                _wait(service)
            yield service
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def command(config: Path, *arguments: str) -> Sequence[str]:
    """The launcher's command line."""
    return [sys.executable, "-m", "api", "--config", str(config), *arguments]


def _wait(service: Service) -> None:
    end = time.monotonic() + PATIENCE_S
    with service.client() as client:
        while time.monotonic() < end:
            answer = client.get("/ready")
            if answer.status_code == 200:
                return
            assert answer.json()["code"] == "loading", answer.text
            time.sleep(0.1)
    raise AssertionError("the service did not get ready")
