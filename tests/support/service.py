"""A tiny model with an index of tiny images, and the service as a real process over HTTP."""

import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx
import numpy as np
import psutil
from PIL import Image

from api.memory import keep_memory
from medclip_dcl.inference.predictor import load
from medclip_dcl.retrieval.index import select_content
from tests.support import forkserver, published
from tests.support.dicom import raster_bytes
from tests.support.embeddings import (
    PixelRows,
    commit_index,
    manifest_table,
    sentence_table,
    study_ids,
)
from tests.support.tiny_models import random_images

N_IMAGES = 12
FINDINGS = ("Pleural Effusion", "Tuberculosis")
"""Of studies with an even and with an odd number."""
PATIENCE_S = 90.0


def store(folder: Path, seed: int = 0) -> Path:
    """Commit a tiny model and its index below a folder; each study says two sentences."""
    model = published.publish(folder / "model", seed=seed)
    pixels = PixelRows(random_images(N_IMAGES), (96, 64))
    studies = study_ids(N_IMAGES)
    said = [[published.SENTENCES[at % 7] for at in (row, row + 3)] for row in range(N_IMAGES)]
    chosen = select_content(
        manifest_table(studies, N_IMAGES),
        sentence_table(studies, said),
        {study["study_id"]: [FINDINGS[row % 2]] for row, study in enumerate(studies)},
        pixels,
    )
    predictor = load(model.path, "cpu")
    similarity = predictor.config.model.similarity
    commit_index(folder / "index", chosen, pixels, predictor, similarity, model.digest)
    return folder


def png(size: tuple[int, int] = (96, 64), seed: int = 3) -> bytes:
    """An image as a PNG, height and width given."""
    image = Image.fromarray(random_images(1, seed=seed)[0]).resize((size[1], size[0]))
    return raster_bytes(np.asarray(image), "png")


@dataclass
class Service:
    process: ForkServerProcess
    log: Path
    url: str = ""

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def resident_mb(self) -> float:
        return psutil.Process(self.process.pid).memory_info().rss / 2**20

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait, while it runs, until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert self.process.exitcode is None, self.log.read_text()
            assert time.monotonic() < end, "the service did not get so far"
            time.sleep(0.02)

    def wait(self) -> int | None:
        """Wait until it has ended, or too long, and give its exit code."""
        self.process.join(PATIENCE_S)
        return self.process.exitcode


@contextmanager
def running(
    folder: Path,
    *,
    constants: Mapping[str, float] | None = None,
    **settings: object,
) -> Iterator[Service]:
    """Run the service on a free port; stop it at the end.

    `constants` of modules, such as `api.middleware:PIECE_S`, are set to other values first. The
    engine is PyTorch unless another is asked for: an export takes seconds.
    """
    tree = {"model": str(folder / "model"), "index": str(folder / "index"), "engine": "torch"}
    tree |= settings
    if "key_file" not in settings:
        tree.setdefault("allow_anonymous", True)
    folder = Path(tempfile.mkdtemp(dir=folder))
    config, log, output = (folder / name for name in ("serve.json", "log.jsonl", "output"))
    config.write_text(json.dumps(tree))
    words = ["--config", str(config), "--port", "0"]
    before = ("tests.support.service:prepare", (dict(constants or {}),))
    process = forkserver.start("api.launcher", words, log, output=output, before=before)
    service = Service(process, log)
    try:
        service.until(lambda: output.is_file() and output.read_text().endswith("\n"))
        service.url = json.loads(output.read_text())["url"]
        with service.client() as client:
            service.until(lambda: client.get("/ready").status_code == 200)
        yield service
    finally:
        service.process.terminate()
        if service.wait() is None:
            service.process.kill()
            service.wait()


def prepare(constants: Mapping[str, float]) -> None:
    """Set a process up as `python -m api` does; called in that process itself."""
    keep_memory()
    for place, value in constants.items():
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(module), name), place
        setattr(importlib.import_module(module), name, value)
