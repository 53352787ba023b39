"""Count what a source holds, name its faults and leaks, before anything is prepared.

Reads the source's tables, reports and images, and the published model where there is one;
writes `preflight` and the page `preflight.html`. A killed run goes on with the next unit of
images or sections, and images that an earlier check of the same files opened are not opened again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from medclip_dcl.artifact import (
    HEADER,
    ArtifactWriter,
    make_fingerprint,
    read_artifact_header,
    remove_resumable,
)
from medclip_dcl.data import data_check
from medclip_dcl.data.data_check import Belonging, Look, Row, draw
from medclip_dcl.data.images import limits_of
from medclip_dcl.data.manifest import LOCATIONS, Source, select, split_patients
from medclip_dcl.errors import ArtifactError, StudyError
from medclip_dcl.files import write_text
from medclip_dcl.progress import Progress
from medclip_dcl.reporting.page import render_check
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text.sentences import SPLITTER, used_sections

from .build_manifest import read_source
from .job import Job, run_job

PAGE = "preflight.html"
"""Name of the page, in the config's folder."""


def build(job: Job) -> None:
    """Check a config's source; `StudyError` where it has more faults than `check` allows."""
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
    known = _images_at_hand(job, make_fingerprint(data_check.ARTIFACT, settings, inputs))
    artifact = job.make(
        data_check.ARTIFACT, settings, inputs, lambda writer: _check(job, source, writer, known)
    )
    tree = data_check.read_preflight(artifact)
    write_text(job.work / PAGE, render_check(job.work.name, artifact))
    print(data_check.preflight_table(tree), flush=True)
    job.say(page=str(job.work / PAGE))
    if not tree["verdict"]["clean"]:
        raise StudyError(
            "the source has more faults than check.max_unusable_share, max_duplicate_share and "
            f"max_leaks allow; {data_check.FOUND.file} of {artifact.path} names each: correct them"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code: 3 where there are more faults than allowed."""
    return run_job("check_data", build, argv)


def _check(
    job: Job, source: Source, writer: ArtifactWriter, known: list[Row] | None
) -> Mapping[str, Any]:
    config, folder = job.config, writer.directory
    chosen = select(source.raw, config.source)
    of = Belonging.of(chosen, split_patients(source, chosen, config.source))
    paths = [study.report for study in source.raw.studies if isinstance(study.report, str)]
    with Progress("report files looked at", len(paths), "file") as progress:
        encodings = data_check.count_encodings(source.raw.reports_root, paths, progress.advance)
    asked = draw(sorted(chosen.texts), config.check.reports, config.seed)
    texts = {study: chosen.texts[study]._asdict() for study in asked}
    sections_of = {
        study: [text[name] for name in used_sections(text, config.sentences)]
        for study, text in texts.items()
    }
    read = data_check.read_reports(folder, sections_of, config.sentences)
    if known is None:
        drawn = draw([i.image_id for i in chosen.images], config.check.images, config.seed)
        known = data_check.look_at_images(
            folder, chosen.images, set(drawn), source.raw.root, config.images
        )
    look = Look(source, chosen, of, known, read, asked, encodings, _trained(job, of))
    found, repeats = data_check.find_faults(look)
    tree = data_check.describe_source(look, found, repeats, config.source.kind, config.check)
    remove_resumable(folder)
    write_table(folder, data_check.IMAGES, known)
    write_table(folder, data_check.FOUND, [item._asdict() for item in sorted(set(found))])
    write_text(folder / data_check.FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    return {
        "images": len(known),
        "opened": tree["images"]["opened"],
        "reports": len(chosen.texts),
        **{f"found_{line['code']}": line["count"] for line in tree["lines"]},
        "clean": tree["verdict"]["clean"],
    }


def _images_at_hand(job: Job, fingerprint: Mapping[str, Any]) -> list[Row] | None:
    """Take the images from an earlier check of the same files, whatever else has changed."""
    try:
        earlier = job.open(data_check.ARTIFACT)
    except ArtifactError:
        return None
    if _about_images(earlier.fingerprint) != _about_images(fingerprint):
        return None
    rows: list[Row] = read_table(earlier.path, data_check.IMAGES).to_pylist()
    return rows


def _about_images(fingerprint: Mapping[str, Any]) -> tuple[Any, ...]:
    settings = fingerprint["settings"]
    inputs = {name: item for name, item in fingerprint["inputs"].items() if name != "trained_model"}
    named = (settings[name] for name in ("source", "images", "seed"))
    return inputs, *named, settings["check"]["images"]


def _trained(job: Job, of: Belonging) -> list[str]:
    """Name evaluated patients that the model in the same folder was trained on."""
    if not _model_digest(job):
        return []
    from medclip_dcl import model_package  # imports torch, which no other source needs

    model = model_package.read_model_package(model_package.ARTIFACT.at(job.work))
    trained = model.subject_hashes or frozenset()
    split = job.config.evaluate.split
    subjects = {of.subject_of[i] for i, name in of.split_of.items() if name == split}
    return sorted(who for who in subjects if model_package.subject_hash(who) in trained)


def _model_digest(job: Job) -> str:
    folder = job.work / "model"
    return read_artifact_header(folder).digest if (folder / HEADER).is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
