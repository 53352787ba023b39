"""A model's answers on every image of a manifest: one row per image and finding.

The model is in this process, or behind services, which get images without identity. Images that are
DICOM may have their answers made into objects too, and stored back into an archive.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from medclip_dcl.artifact import Artifact, ArtifactType
from medclip_dcl.artifact_writer import Row, map_resumable, remove_resumable
from medclip_dcl.client import Client
from medclip_dcl.data import manifest
from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.distributed import available_cores
from medclip_dcl.errors import ImageError, ServiceError, StudyError
from medclip_dcl.files import path_under, sync_file
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.progress import Progress
from medclip_dcl.schemas import ClassifyAnswer, RefusedImage
from medclip_dcl.tables import Column, TableFormat, read_table, write_table
from medclip_hospital.dicomweb import DicomWeb
from medclip_hospital.results import encode_results
from medclip_hospital.settings import AnswerConfig

ARTIFACT = ArtifactType("answers", 2, "answer_images")

ANSWERS = TableFormat(
    "answers.parquet",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("study_id", pa.string(), "id of its study"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("finding", pa.string(), "the finding"),
        Column("score", pa.float64(), "share of the positive prompt, 0 to 1; no probability"),
        Column("margin", pa.float64(), "score of the positive prompt minus that of the negative"),
        Column(
            "decision",
            pa.bool_(),
            "whether the finding is decided to be present; null where its calibration was refused",
        ),
        Column(
            "probability",
            pa.float64(),
            "calibrated, 0 to 1; null without a calibration, and of an image out of range",
        ),
        Column(
            "out_of_range",
            pa.bool_(),
            "whether the image is unlike those that the model was trained on: its row says nothing",
        ),
        Column("x", pa.float64(), "left edge of the box, pixels of the image; null without one"),
        Column("y", pa.float64(), "top edge of the box, pixels of the image"),
        Column("width", pa.float64(), "width of the box, pixels of the image"),
        Column("height", pa.float64(), "height of the box, pixels of the image"),
        Column("model", pa.string(), "digest of the model"),
    ),
)
"""One row per image and finding, in the order of the manifest and of the model's findings."""

OBJECTS = TableFormat(
    "objects-*.arrow",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("kind", pa.string(), "sr, pr or sc"),
        Column("sop_instance_uid", pa.string(), "UID of the object"),
        Column("file", pa.large_binary(), "the object as a DICOM file"),
    ),
)
"""Answers as DICOM objects, where asked for: a file per 256 images, a batch per image."""

UNIT = 256
"""Images that are resumed together."""

_BATCH = 32
_CONNECTIONS = 4
_PER_REQUEST, _MOST_BYTES = 4, 16 << 20  # images of a request, and their bytes: else each alone
_NOT_DICOM = "unknown_format"

Source = Path | bytes | memoryview
Answer = ClassifyAnswer | str
"""What is answered, or the code of a refusal."""
Ask = Callable[[Sequence[Source | None]], list[Answer]]
"""Answers images; None stands for a file that is missing."""


class AskedImage(NamedTuple):
    """An image as the manifest names it, and its row."""

    row: int
    image_id: str
    study_id: str
    subject_id: str
    path: str


def list_asked_images(studies: Artifact) -> list[AskedImage]:
    """List the images of a manifest, in its order."""
    names = list(AskedImage._fields[1:])
    rows = read_table(studies.path, manifest.IMAGES, names).to_pylist()
    return [AskedImage(number, **row) for number, row in enumerate(rows)]


@contextmanager
def asking_model(predictor: Predictor, images: ImagesConfig, workers: int = 0) -> Iterator[Ask]:
    """Ask a model in this process: images are decoded side by side and encoded in batches.

    `images` has the limits of decoding; size and preparation are the model's own.
    """
    own = predictor.config.images
    workers = workers or available_cores()
    limits = images.model_copy(update={"voi": own.voi})
    with Decoder(limits, workers) as decoder, ThreadPoolExecutor(workers) as threads:

        def prepare(source: Source | None) -> SquareImage | str:
            if source is None:
                return "missing"
            try:
                return decoder.square(source, own.size_px, equalize=own.equalize)
            except ImageError as error:
                return error.code

        def ask(sources: Sequence[Source | None]) -> list[Answer]:
            answers: list[Answer] = []
            for start in range(0, len(sources), _BATCH):
                squares = list(threads.map(prepare, sources[start : start + _BATCH]))
                good = [item for item in squares if isinstance(item, SquareImage)]
                found = iter(_classified(predictor, good))
                answers += [item if isinstance(item, str) else next(found) for item in squares]
            return answers

        yield ask


def _classified(predictor: Predictor, images: Sequence[SquareImage]) -> list[ClassifyAnswer]:
    if not images:
        return []
    findings = predictor.findings
    pixels = np.stack([image.pixels for image in images])
    regions = predictor.embed_images(pixels)
    scores = predictor.classify_regions(regions)
    heads = predictor.answer_heads(regions, pixels)
    answers = []
    for image, own, score, said in zip(images, regions, scores, heads, strict=True):
        found = predictor.locate_findings(own, findings, image.height_px, image.width_px)
        answers.append(ClassifyAnswer.of(predictor, image, score, findings, found, said))
    return answers


@contextmanager
def asking_service(client: Client, images: ImagesConfig, model: str) -> Iterator[Ask]:
    """Ask a service whose model has the digest `model`, about a few images in a request.

    DICOM goes without identity. Asking raises ServiceError where the service cannot be reached, or
    has another model by then.
    """
    with Decoder(images, _CONNECTIONS) as decoder, ThreadPoolExecutor(_CONNECTIONS) as threads:

        def ask_some(sources: Sequence[Source | None]) -> list[Answer]:
            given = [_without_identity(decoder, source) for source in sources]
            images = [item for item in given if isinstance(item, bytes)]
            is_small = sum(map(len, images)) <= _MOST_BYTES
            requests = [images] if is_small and images else [[image] for image in images]
            found = (
                answer for part in requests for answer in client.classify_all(part, explain=True)
            )
            return [
                item if isinstance(item, str) else _answer_of(next(found), model) for item in given
            ]

        def ask(sources: Sequence[Source | None]) -> list[Answer]:
            starts = range(0, len(sources), _PER_REQUEST)
            parts = threads.map(ask_some, [sources[i : i + _PER_REQUEST] for i in starts])
            return [answer for part in parts for answer in part]

        yield ask


def _answer_of(answer: ClassifyAnswer | RefusedImage, model: str) -> Answer:
    if isinstance(answer, RefusedImage):
        return answer.code
    if answer.model != model:
        raise ServiceError("model_changed", "the service has another model now; run again")
    return answer


def _without_identity(decoder: Decoder, source: Source | None) -> bytes | str:
    """Give what the service gets of an image, or the code of a refusal."""
    if source is None:
        return "missing"
    try:
        return decoder.separate(source).stripped
    except ImageError as error:
        if error.code != _NOT_DICOM:
            return error.code
    return source.read_bytes() if isinstance(source, Path) else bytes(source)


def answer_images(
    folder: Path,
    images: Sequence[AskedImage],
    root: Path,
    ask: Ask,
    settings: AnswerConfig,
    limits: ImagesConfig,
    max_reject_share: float = 1.0,
    unit: int = UNIT,
) -> dict[str, Any]:
    """Answer all images below `root`, write the tables, and give the artifact's summary.

    What a killed run had finished is kept, in units of `unit` images; the rows are the same as
    those of a run that was not killed.

    Raises:
        StudyError: more images were refused than `max_reject_share` allows.
        ServiceError: a service that is asked cannot be reached.
    """
    with Decoder(limits, 1) as decoder, Progress("answer", len(images), "image") as progress:

        def answer(part: Sequence[AskedImage]) -> list[Row]:
            sources = [_source(root, listed.path) for listed in part]
            answers = ask(sources)
            rows = [row for item in zip(part, answers, strict=True) for row in _rows(*item)]
            if settings.objects:
                path = folder / OBJECTS.file.replace("*", f"{part[0].row // unit:05d}")
                made = zip(part, sources, answers, strict=True)
                codes = _write_objects(path, made, decoder, settings)
                rows += [{"id": name, "code": code} for name, code in codes]
            return rows

        rows = map_resumable(folder, "answers", images, unit, answer, progress.advance)
    answered = [row for row in rows if "code" not in row]
    rejects = [row for row in rows if "code" in row]
    refused = {row["id"] for row in rejects}
    if images and len(refused) / len(images) > max_reject_share:
        raise StudyError(
            f"{len(refused)} of {len(images)} images were refused "
            f"({dict(Counter(row['code'] for row in rejects))}), more than "
            f"source.max_reject_share {max_reject_share}; correct them or raise the share"
        )
    write_table(folder, ANSWERS, answered)
    fields = [{"id": row["id"], "stage": ARTIFACT.job, "reason": row["code"]} for row in rejects]
    write_table(folder, manifest.REJECTS, fields)
    remove_resumable(folder)
    within = [row for row in answered if not row["out_of_range"]]
    present = Counter(row["finding"] for row in within if row["decision"])
    return {
        "images": len({row["image_id"] for row in answered}),
        "out_of_range": len({row["image_id"] for row in answered if row["out_of_range"]}),
        "rejected": len(refused),
        "reasons": dict(sorted(Counter(row["code"] for row in rejects).items())),
        "present": dict(sorted(present.items())),
    }


def _source(root: Path, path: str) -> Source | None:
    try:
        return path_under(root, path)
    except StudyError:
        return None


def _rows(listed: AskedImage, answer: Answer) -> Iterator[Row]:
    if isinstance(answer, str):
        yield {"id": listed.image_id, "code": answer}
        return
    for finding in answer.findings:
        box = finding.where.box if finding.where else None
        yield {
            "image_id": listed.image_id,
            "study_id": listed.study_id,
            "subject_id": listed.subject_id,
            "finding": finding.name,
            "score": finding.score,
            "margin": finding.margin,
            "decision": finding.decision,
            "probability": finding.probability,
            "out_of_range": answer.image.is_out_of_range,
            **{name: getattr(box, name, None) for name in ("x", "y", "width", "height")},
            "model": answer.model,
        }


def _write_objects(
    path: Path,
    answered: Iterable[tuple[AskedImage, Source | None, Answer]],
    decoder: Decoder,
    settings: AnswerConfig,
) -> list[tuple[str, str]]:
    """Write the objects of a unit, and give id and code of what no object could be made of."""
    refused = []
    with pa.ipc.new_file(str(path), OBJECTS.schema) as writer:
        for listed, source, answer in answered:
            if isinstance(answer, str) or source is None:
                continue
            try:
                header, picture = decoder.separate(source).header, decoder.open(source)
                now = dt.datetime.now().astimezone()
                made = encode_results(header, answer, picture, now, settings)
            except ImageError as error:
                if error.code != _NOT_DICOM:
                    refused.append((listed.image_id, error.code))
                continue
            rows = [
                {
                    "image_id": listed.image_id,
                    "kind": item.kind,
                    "sop_instance_uid": item.sop_instance_uid,
                    "file": item.data,
                }
                for item in made
            ]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=OBJECTS.schema))
    sync_file(path)
    return refused


def store_objects(answers: Artifact, archive: DicomWeb) -> int:
    """Store an artifact's objects in an archive, an image's at a time; return how many there are.

    Repeated, it changes nothing: an object has the same UID each time.

    Raises:
        ServiceError: the archive cannot be reached, or did not store them.
    """
    count = 0
    names = sorted(name for name in answers.files if name.endswith(".arrow"))
    with Progress("store objects", len(names), "file") as progress:
        for name in names:
            reader = pa.ipc.open_file(pa.memory_map(str(answers.file(name))))
            for number in range(reader.num_record_batches):
                rows = reader.get_batch(number).to_pydict()
                archive.store(dict(zip(rows["sop_instance_uid"], rows["file"], strict=True)))
                count += len(rows["file"])
            progress.advance(1)
    return count
