"""Count what a source holds, name its faults and leaks, before anything is prepared.

Reads the source's tables, reports and images, and the published model where there is one;
writes `preflight` and the page `preflight.html`. A killed run goes on with the next unit of
images or sections, and images that an earlier check of the same files opened are not opened again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from medclip_dcl.artifact import (
    HEADER,
    ArtifactWriter,
    make_fingerprint,
    map_resumable,
    read_artifact_header,
    remove_resumable,
)
from medclip_dcl.config import Config
from medclip_dcl.data import data_check
from medclip_dcl.data import data_check as checks
from medclip_dcl.data.data_check import (
    ANSWERS,
    Belonging,
    Found,
    Survey,
    count_encodings,
    look_at_header,
    look_at_image,
    read_section,
    survey,
)
from medclip_dcl.data.images import Decoder, limits_of
from medclip_dcl.data.manifest import LOCATIONS, Selection, Source, assign_splits, select
from medclip_dcl.data.sources.records import SPLITS, ImageRecord
from medclip_dcl.distributed import available_cores
from medclip_dcl.errors import ArtifactError, StudyError
from medclip_dcl.files import write_text
from medclip_dcl.progress import Progress
from medclip_dcl.reporting.page import render_check
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import SPLITTER, text_key
from pipelines.build_manifest import read_source
from pipelines.job import Job, run_job
from pipelines.split_sentences import used_sections

PAGE = "preflight.html"
"""Name of the page, in the recipe's folder."""

Rows = list[dict[str, Any]]


def build(job: Job) -> None:
    """Check a recipe's source.

    Args:
        job: the job.

    Raises:
        StudyError: the source has more faults than `check` allows.
    """
    config = job.config
    source = read_source(config)
    settings = {
        "source": config.source.model_dump(mode="json", exclude=LOCATIONS),
        "images": asdict(limits_of(config.images)),
        "check": config.check,
        "sentences": config.sentences,
        "splitter": SPLITTER,
        "seed": config.seed,
        "split": config.evaluate.split,
    }
    inputs = source.inputs | {"trained_model": _model_digest(job)}
    at_hand = _images_at_hand(job, make_fingerprint(data_check.ARTIFACT, settings, inputs))
    artifact = job.make(
        data_check.ARTIFACT, settings, inputs, lambda draft: _check(job, source, draft, at_hand)
    )
    tree = data_check.read_preflight(artifact)
    write_text(job.work / PAGE, render_check(job.work.name, artifact))
    print(data_check.preflight_table(tree), flush=True)
    job.say(page=str(job.work / PAGE))
    if not tree["verdict"]["clean"]:
        raise StudyError(
            "the source has more faults than check.max_unusable_share, max_duplicate_share and "
            f"max_leaks allow; {data_check.FOUND.file} of {artifact.path} names each, mend them"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code: 0 clean, 3 more faults than allowed, else as `pipelines.job` says.
    """
    return run_job("check_data", build, argv)


@dataclass(frozen=True)
class _Look:
    """What was looked at: selection, belongings, opened images, surveyed reports."""

    chosen: Selection
    of: Belonging
    images: Rows
    reports: int
    survey: Survey
    encodings: dict[str, int]


def _check(
    job: Job, source: Source, writer: ArtifactWriter, at_hand: Rows | None
) -> Mapping[str, Any]:
    config = job.config
    chosen = select(source.raw, config.source)
    of = _belonging(config, source, chosen)
    encodings = _encodings(source)
    asked = _drawn(sorted(chosen.texts), config.check.reports, config.seed)
    surveyed = _survey(config, chosen, asked, writer)
    images = _look_at_images(config, source, chosen, writer) if at_hand is None else at_hand
    look = _Look(chosen, of, images, len(asked), surveyed, encodings)
    found, duplicates = _find(job, source, look, asked)
    remove_resumable(writer.directory)
    tree = _tree(config, source, look, found, duplicates)
    write_table(writer.directory, data_check.IMAGES, images)
    write_table(writer.directory, data_check.FOUND, [item._asdict() for item in sorted(set(found))])
    write_text(
        writer.directory / data_check.FIGURES,
        json.dumps(tree, indent=1, allow_nan=False) + "\n",
    )
    return {
        "images": len(images),
        "opened": tree["images"]["opened"],
        "reports": len(chosen.texts),
        **{f"found_{line['code']}": line["count"] for line in tree["lines"]},
        "clean": tree["verdict"]["clean"],
    }


def _images_at_hand(job: Job, fingerprint: Mapping[str, Any]) -> Rows | None:
    """Take the images from an earlier check of the same files, whatever else has changed."""
    try:
        earlier = job.open(data_check.ARTIFACT)
    except ArtifactError:
        return None
    if _about_images(earlier.fingerprint) != _about_images(fingerprint):
        return None
    rows: Rows = read_table(earlier.path, data_check.IMAGES).to_pylist()
    return rows


def _about_images(fingerprint: Mapping[str, Any]) -> tuple[Any, ...]:
    settings = fingerprint["settings"]
    inputs = {name: item for name, item in fingerprint["inputs"].items() if name != "trained_model"}
    named = (settings[name] for name in ("source", "images", "seed"))
    return inputs, *named, settings["check"]["images"]


def _belonging(config: Config, source: Source, chosen: Selection) -> Belonging:
    """Say whose each image and study is, and in which split the manifest will put it."""
    subject_of = {image.image_id: image.subject_id for image in chosen.images}
    subject_of |= chosen.subjects
    splits = assign_splits(
        sorted(set(subject_of.values())),
        source.raw.splits,
        source.boxes.subjects,
        config.source.validate_share,
        config.source.test_share,
    )
    return Belonging(subject_of, {item: splits[who] for item, who in subject_of.items()})


def _drawn(ids: Sequence[str], wanted: int, seed: int) -> list[str]:
    if not wanted or wanted >= len(ids):
        return list(ids)
    indices = np.random.default_rng(seed).choice(len(ids), wanted, replace=False)
    return [ids[index] for index in sorted(indices.tolist())]


def _encodings(source: Source) -> dict[str, int]:
    paths = [study.report for study in source.raw.studies if isinstance(study.report, str)]
    with Progress("report files looked at", len(paths), "file") as progress:
        return count_encodings(source.raw.reports_root, paths, progress.advance)


def _survey(
    config: Config, chosen: Selection, asked: Sequence[str], writer: ArtifactWriter
) -> Survey:
    """Split and read every distinct section of the drawn reports once."""
    texts = {study: chosen.texts[study]._asdict() for study in asked}
    sections_of = {
        study: [said[name] for name in used_sections(said, config.sentences)]
        for study, said in texts.items()
    }
    distinct = sorted({text for sections in sections_of.values() for text in sections})

    def read(part: Sequence[str]) -> Rows:
        return [read_section(text, config.sentences) for text in part]

    with Progress("sections read", len(distinct), "section") as progress:
        rows = map_resumable(
            writer.directory, "sections", distinct, config.check.unit, read, progress.advance
        )
    return survey(sections_of, dict(zip(distinct, rows, strict=True)))


def _look_at_images(
    config: Config, source: Source, chosen: Selection, writer: ArtifactWriter
) -> Rows:
    """Open the drawn images, and read the first bytes of the others."""
    drawn = set(
        _drawn([image.image_id for image in chosen.images], config.check.images, config.seed)
    )
    images = [image for image in chosen.images if image.image_id in drawn]
    others = [image for image in chosen.images if image.image_id not in drawn]
    root, limits = source.raw.root, limits_of(config.images)
    workers = config.images.workers or available_cores()
    unit, folder = config.check.unit, writer.directory
    with Progress("headers read", len(others), "image") as progress:
        rows = map_resumable(
            folder,
            "headers",
            others,
            unit,
            lambda part: [look_at_header(image, root, limits) for image in part],
            progress.advance,
        )
    with (
        Progress("images opened", len(images), "image") as progress,
        Decoder(config.images, workers) as decoder,
        ThreadPoolExecutor(workers) as threads,
    ):

        def look(part: Sequence[ImageRecord]) -> Rows:
            try:
                return list(threads.map(lambda image: look_at_image(image, root, decoder), part))
            except BaseException:  # stopped: what is queued need not be opened first
                threads.shutdown(wait=False, cancel_futures=True)
                raise

        rows += map_resumable(folder, "images", images, unit, look, progress.advance)
    return sorted(rows, key=itemgetter("image_id"))


def _find(
    job: Job, source: Source, look: _Look, asked: Sequence[str]
) -> tuple[list[Found], dict[str, Any]]:
    chosen = look.chosen
    found = checks.name_rejects(source.raw, chosen)
    found += [Found(row["code"], row["image_id"]) for row in look.images if row["code"]]
    found += [Found("monochrome1", row["image_id"]) for row in look.images if row["inverted"]]
    found += checks.find_leaks(source.raw.splits, source.boxes.subjects)
    found += [Found("trained_patient", who) for who in _trained(job, look)]
    found += [Found("no_sentence", study) for study in asked if study not in look.survey.usable]
    pixels = checks.find_repeats({row["image_id"]: row["pixels_key"] for row in look.images})
    keys = {study: text_key(" ".join(chosen.texts[study])) for study in chosen.texts}
    texts = checks.find_repeats(keys)
    found += checks.name_repeats("same_pixels", pixels) + checks.name_repeats("same_text", texts)
    found += checks.across_splits(pixels, look.of)
    return found, {
        "pixels": checks.count_repeats(pixels, look.of),
        "text": checks.count_repeats(texts, look.of),
    }


def _trained(job: Job, look: _Look) -> list[str]:
    """Name evaluated patients that the model beside the source was trained on."""
    if not _model_digest(job):
        return []
    from medclip_dcl import model_package

    trained = (
        model_package.read_model_package(model_package.ARTIFACT.at(job.work)).subject_hashes
        or frozenset()
    )
    split = job.config.evaluate.split
    subjects = {look.of.subject_of[i] for i, name in look.of.split_of.items() if name == split}
    return sorted(who for who in subjects if model_package.subject_hash(who) in trained)


def _model_digest(job: Job) -> str:
    folder = job.work / "model"
    return read_artifact_header(folder).digest if (folder / HEADER).is_file() else ""


def _tree(
    config: Config,
    source: Source,
    look: _Look,
    found: Sequence[Found],
    duplicates: Mapping[str, Any],
) -> dict[str, Any]:
    chosen, raw = look.chosen, source.raw
    images = checks.describe_images(look.images)
    codes = {row["code"] for row in look.images} | {"monochrome1"}
    of = {str(code): int(images["looked"]) for code in codes}
    of |= {code: int(images["opened"]) for code in ("same_pixels", "pixels_across_splits")}
    patients = len({*raw.splits, *(image.subject_id for image in raw.images)})
    of |= {
        "same_text": len(chosen.texts),
        "no_sentence": look.reports,
        "two_splits": len(raw.splits),
        "boxed_training": len(source.boxes.subjects),
        "trained_patient": patients,
    }
    refused = {row["image_id"] for row in look.images if row["code"]}
    unread = set[str]() if look.reports == len(chosen.texts) else set(chosen.texts)
    usable = look.survey.usable | unread
    total = len(raw.images) if raw.has_images else len(raw.studies)
    return {
        "source": {
            "kind": config.source.kind,
            "has_images": raw.has_images,
            "all_images": images["opened"] == images["looked"],
            "all_reports": look.reports == len(chosen.texts),
            "boxes": len(source.boxes.rows),
        },
        "steps": checks.count_steps(raw, chosen, usable, refused),
        "lines": checks.make_lines(found, of, total + len(raw.rejects)),
        "splits": _splits(look),
        "encodings": look.encodings,
        "images": images,
        "duplicates": dict(duplicates),
        "text": {
            "reports": look.reports,
            "sentences": look.survey.sentences,
            "masked_sentences": look.survey.masked,
            "masked_reports": look.survey.masked_studies,
            "dropped": dict(look.survey.dropped),
        },
        "labels": _labels(source, look),
        "verdict": checks.judge(chosen, images, found, config.check),
    }


def _splits(look: _Look) -> dict[str, dict[str, int]]:
    of = look.of
    return {
        split: {
            "images": sum(of.split_of[image.image_id] == split for image in look.chosen.images),
            "reports": sum(of.split_of[study] == split for study in look.chosen.texts),
            "patients": len({of.subject_of[i] for i, name in of.split_of.items() if name == split}),
        }
        for split in SPLITS
    }


def _labels(source: Source, look: _Look) -> dict[str, Any]:
    """Count studies per finding: from the source's label table, else from what reports say."""
    table = source.raw.labels
    if table is None:
        return {"source": "reports", "studies": look.reports, "findings": look.survey.labels}
    values = dict(zip((1, 0, -1), ANSWERS, strict=True))
    seen: set[str] = set()
    counts = {name: dict.fromkeys(ANSWERS, 0) for name in LABELS}
    for row in table.to_pylist():
        if row["study_id"] not in look.chosen.texts or row["study_id"] in seen:
            continue
        seen.add(row["study_id"])
        for name in LABELS:
            if row[name] in values:
                counts[name][values[row[name]]] += 1
    return {"source": "table", "studies": len(seen), "findings": counts}


if __name__ == "__main__":
    sys.exit(main())
