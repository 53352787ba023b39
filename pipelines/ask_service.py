"""Start the service on a free port, ask it three questions over HTTP, keep the answers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from medclip_dcl.client import Client
from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import QueryError
from medclip_dcl.core.files import path_under, write_text
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.data.sources import readers
from medclip_dcl.inference import model_package
from medclip_dcl.retrieval import embeddings
from medclip_dcl.schemas import Schema
from medclip_dcl.text import sentences

from .cli import sibling
from .job import Job, job_main

ANSWERS = "service_answers.json"
_SETTINGS = Path("configs/serve.yaml")
_START_S = 90.0


def build(job: Job) -> None:
    """Ask the service of a run's model and index about one of its test images.

    Raises:
        QueryError: the service did not start.
        ServiceError: it answered with an error.
    """
    images, index = job.open(manifest.ARTIFACT), job.open(embeddings.ARTIFACT)
    model = job.open(model_package.ARTIFACT)
    asked = {"model": model.digest, "index": index.digest, "manifest": images.digest}
    if not job.force and _asked(job.work / ANSWERS) == asked:
        job.say(artifact="answers", state="reused")
        return
    image, phrase = _choose(images, index, job.open(sentences.ARTIFACT))
    config = job.config
    root = readers.images_root(config.source, lambda text: resolve_path(text, config.work))
    source = path_under(root, image["path"])
    picture = source.read_bytes() if isinstance(source, Path) else bytes(source)
    with _serving(model.path, index.path) as client:
        answers = {
            "classify": _timed(lambda: client.classify(picture)),
            "ground": _timed(lambda: client.ground(picture, [phrase])),
            "retrieve": _timed(lambda: client.retrieve("text", image=picture, k=5)),
        }
    record = {"image_id": image["image_id"], "phrase": phrase, "answers": answers, "asked": asked}
    write_text(job.work / ANSWERS, json.dumps(record, indent=1) + "\n")
    seconds = {name: answer["seconds"] for name, answer in answers.items()}
    job.say(
        artifact="answers",
        state="made",
        answers=len(answers),
        **{f"{name}_s": value for name, value in seconds.items()},
    )


def _asked(path: Path) -> object:
    # Digests of what the last answers are from.
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("asked")
    except (OSError, ValueError, AttributeError):
        return None


@contextmanager
def _serving(model: Path, vectors: Path) -> Iterator[Client]:
    # The service as users run it, until the caller is done.
    settings = {
        "MEDCLIP_MODEL": str(model),
        "MEDCLIP_INDEX": str(vectors),
        "MEDCLIP_ALLOW_ANONYMOUS": "true",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", sibling("api"), "--config", str(_SETTINGS), "--port", "0"],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = _announced_address(process)
        _await_ready(address)
        with Client(address) as client:
            yield client
    finally:
        stop_service(process)


def stop_service(process: subprocess.Popen[str], patience_s: float = 60.0) -> None:
    """Ask a service to stop, and kill one that takes longer than it drains: nobody else would."""
    with process:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience_s)
        process.kill()


def _choose(images: Artifact, index: Artifact, texts: Artifact) -> tuple[dict[str, Any], str]:
    # A test image that was not refused, with the phrase of its box where it has one.
    known = set(read_table(index.path, embeddings.IMAGES, ["image_id"])["image_id"].to_pylist())
    rows = read_table(images.path, manifest.IMAGES).to_pylist()
    test = [row for row in rows if row["split"] == "test" and row["image_id"] in known]
    if not test:
        raise QueryError("the index has no test image to ask about; raise source.test_share")
    boxes = {
        row["image_id"]: row["phrase"]
        for row in read_table(images.path, manifest.BOXES).to_pylist()
    }
    for image in test:
        if image["image_id"] in boxes:
            return image, boxes[image["image_id"]]
    rows = read_table(texts.path, sentences.SENTENCES).to_pylist()
    phrase = next(row["text"] for row in rows if row["study_id"] == test[0]["study_id"])
    return test[0], phrase


def _timed(ask: Callable[[], Schema]) -> dict[str, Any]:
    start = time.monotonic()
    body = ask().model_dump(mode="json", exclude_unset=True)  # as the service sent it
    return {"seconds": round(time.monotonic() - start, 3), "body": body}


def _announced_address(process: subprocess.Popen[str]) -> str:
    # It stands in the launcher's first line.
    line = process.stdout.readline() if process.stdout is not None else ""
    try:
        announced: dict[str, str] = json.loads(line)
        return announced["url"]
    except (json.JSONDecodeError, KeyError) as error:
        raise QueryError("the service did not start; its reason stands above") from error


def _await_ready(address: str) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        try:
            if httpx.get(f"{address}ready", trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise QueryError(f"the service was not ready within {_START_S:.0f} s; see its log")


main = job_main("ask_service", build)

if __name__ == "__main__":
    sys.exit(main())
