"""Start the service on a free port, ask it three questions over HTTP, keep the answers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact
from medclip_dcl.config import resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.errors import QueryError
from medclip_dcl.files import path_under, write_text
from medclip_dcl.retrieval import embeddings
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences

from .cli import sibling
from .job import Job, job_main

ANSWERS = "service_answers.json"
_SETTINGS = Path("configs/serve.yaml")
_START_S = 90.0


def build(job: Job) -> None:
    """Ask the service of a run's model and index about one of its test images.

    Args:
        job: the job; its model, index, manifest and sentences exist.

    Raises:
        QueryError: the service did not start, or answered with an error.
    """
    images = job.open(manifest.ARTIFACT)
    image, phrase = _choose(images, job.open(embeddings.ARTIFACT), job.open(sentences.ARTIFACT))
    root = resolve_path(job.config.source.root, job.config)
    picture = path_under(root, image["path"]).read_bytes()
    with serving(model_package.ARTIFACT.at(job.work), embeddings.ARTIFACT.at(job.work)) as client:
        answers = {
            "classify": _ask(client, "/classify", picture, {}),
            "ground": _ask(client, "/ground", picture, {"phrase": phrase}),
            "retrieve": _ask(client, "/retrieve", picture, {"target": "text", "k": "5"}),
        }
    record = {"image_id": image["image_id"], "phrase": phrase, "answers": answers}
    write_text(job.work / ANSWERS, json.dumps(record, indent=1) + "\n")
    seconds = {name: answer["seconds"] for name, answer in answers.items()}
    job.say(answers=len(answers), **{f"{name}_s": value for name, value in seconds.items()})


@contextmanager
def serving(model: Path, vectors: Path) -> Iterator[httpx.Client]:
    """Run the service as users run it, until the caller is done.

    Args:
        model: folder of a published model.
        vectors: folder of an index of that model.

    Yields:
        A client of the running service, once it is ready.

    Raises:
        QueryError: the service did not become ready.
    """
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
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            _await_ready(client)
            yield client
    finally:
        process.terminate()
        process.wait(timeout=60)
        if process.stdout is not None:
            process.stdout.close()


def _choose(images: Artifact, index: Artifact, texts: Artifact) -> tuple[dict[str, Any], str]:
    """Pick a test image that was not refused, with the phrase of its box where it has one."""
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


def _ask(
    client: httpx.Client, route: str, picture: bytes, fields: dict[str, str]
) -> dict[str, Any]:
    start = time.monotonic()
    reply = client.post(route, files={"image": ("image", picture)}, data=fields)
    seconds = round(time.monotonic() - start, 3)
    if reply.status_code != httpx.codes.OK:
        raise QueryError(f"{route} answered {reply.status_code}; see the service's log")
    return {"seconds": seconds, "status": reply.status_code, "body": reply.json()}


def _announced_address(process: subprocess.Popen[str]) -> str:
    """Read the address from the launcher's first line."""
    line = process.stdout.readline() if process.stdout is not None else ""
    try:
        announced: dict[str, str] = json.loads(line)
        return announced["url"]
    except (json.JSONDecodeError, KeyError) as error:
        raise QueryError("the service did not start; its reason stands above") from error


def _await_ready(client: httpx.Client) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        try:
            if client.get("/ready").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise QueryError(f"the service was not ready within {_START_S:.0f} s; see its log")


main = job_main("ask_service", build)

if __name__ == "__main__":
    sys.exit(main())
