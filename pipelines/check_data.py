"""Count what a source holds, name its faults and leaks, before anything is prepared.

Reads the source's tables, reports and images, and the published model where there is one;
writes `preflight` and the page `preflight.html`. A killed run resumes with the next unit of
images or reports, and images that an earlier check of the same files opened are not opened again.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from medclip_dcl.core.artifact import HEADER, Artifact, make_fingerprint, read_artifact_header
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.errors import ArtifactError, StudyError
from medclip_dcl.core.files import path_under, write_text
from medclip_dcl.core.tables import read_table
from medclip_dcl.data.grayscale import square
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.manifest import split_patients
from medclip_dcl.data.records import Source
from medclip_dcl.data.selection import parts_of_report, select
from medclip_dcl.text.mimic_sections import Part
from medclip_dcl.text.sentences import SPLITTER

from .build_manifest import source_of
from .faults import Inspection, write_preflight
from .inspection import Row, inspect_images, read_reports, show_reports
from .job import Job, job_main
from .report import preflight
from .report.charts import image_uri
from .report.page import render_check

PAGE = "preflight.html"
"""Name of the page, in the config's folder."""

_DECODING = {
    *("voi", "reject_burned_in", "max_megapixels", "max_bytes", "deadline_s", "memory_mb"),
}  # settings of images that decide whether and how one opens


def build(job: Job) -> None:
    """Check a config's source; `StudyError` where it has more faults than are allowed."""
    config = job.config
    source = source_of(config)
    model = job.work / "model"
    trained_model = read_artifact_header(model).digest if (model / HEADER).is_file() else ""
    inputs = source.inputs | {"trained_model": trained_model}
    most = config.source.max_reject_share
    settings = {
        "source": config.source.result_settings(),
        "images": config.images.model_dump(mode="json", include=_DECODING),
        "check": config.check,
        "max_reject_share": most,
        "sentences": config.sentences,
        "splitter": SPLITTER,
        "seed": config.seed,
        "split": config.evaluate.split,
    }
    known = _known_images(job, make_fingerprint(preflight.ARTIFACT, settings, inputs))

    def fill(writer: ArtifactWriter) -> Mapping[str, Any]:
        folder, sample, seed = writer.directory, config.check.sample, config.seed
        chosen = select(source.raw, config.source)
        split_of = split_patients(source, chosen, config.source)
        parts_of = _parts_of(source, config.source.fallback_encoding)
        reports = read_reports(folder, chosen.texts, parts_of, config.sentences, sample, seed)
        images = known or inspect_images(
            folder, chosen.images, source.raw.root, config.images, sample, seed, config.workers
        )
        trained = _trained(job, split_of) if trained_model else []
        look = Inspection(source, chosen, split_of, images, reports, trained)
        return write_preflight(folder, look, config.source.kind, most)

    artifact = job.make(preflight.ARTIFACT, settings, inputs, fill)
    tree = preflight.read_preflight(artifact)
    page = job.work / PAGE
    page.touch(mode=0o600)
    doubles, reports = _doubles(job, source, artifact), _shown_reports(job, source)
    write_text(page, render_check(job.work.name, artifact, doubles, reports))
    page.chmod(0o600)  # it holds reports
    print(preflight.preflight_table(tree), flush=True)
    job.say(page=str(page))
    for warning in preflight.reading_warnings(tree):
        job.say(warning=warning)
    _warn_of_small_validation(job, tree["splits"]["validate"]["reports"])
    if not tree["verdict"]["clean"]:
        raise StudyError(
            "the source has more faults than source.max_reject_share allows, or leaks between its "
            f"splits; {preflight.FOUND.file} of {artifact.path} names each, and its row "
            "where a table has it: correct them"
        )


_SHOWN, _SHOWN_PX, _SHOWN_REPORTS = 6, 160, 20


def _parts_of(source: Source, fallback_encoding: str) -> Callable[[str], list[Part]]:
    """Make what cuts the report of a study, by its id, into parts."""
    study_of = {study.study_id: study for study in source.raw.studies}
    root = source.raw.reports_root
    return lambda study: parts_of_report(study_of[study], root, fallback_encoding)


def _shown_reports(job: Job, source: Source) -> list[list[Row]]:
    """Show how some reports are read; none where `report.private` is set."""
    config = job.config
    if config.report.private:
        return []
    texts = select(source.raw, config.source).texts
    parts_of = _parts_of(source, config.source.fallback_encoding)
    return show_reports([*texts], texts, parts_of, config.sentences, _SHOWN_REPORTS, config.seed)


def _doubles(job: Job, source: Source, artifact: Artifact) -> list[Row]:
    """Show the pictures that most images share; none where `report.private` is set."""
    images = job.config.images
    groups: dict[str, list[str]] = defaultdict(list)
    for row in read_table(artifact.path, preflight.IMAGES).to_pylist():
        if row["pixels_key"]:
            groups[row["pixels_key"]].append(row["image_id"])
    doubles = sorted((names for names in groups.values() if len(names) > 1), key=lambda x: -len(x))
    if job.config.report.private or not doubles:
        return []
    record_of = {image.image_id: image for image in select(source.raw, job.config.source).images}
    with Decoder(images, 1) as decoder:
        return [
            {
                "uri": image_uri(square(decoder.open(path), _SHOWN_PX, equalize=False)),
                "images": len(names),
                "patients": len({record_of[name].subject_id for name in names}),
            }
            for names in doubles[:_SHOWN]
            for path in (path_under(source.raw.root, record_of[names[0]].path),)
        ]


def _warn_of_small_validation(job: Job, reports: int) -> None:
    # A batch holds a study once: a smaller split is one batch, or none with a single study.
    train = job.config.train
    if train.validate_every_steps and reports < train.global_batch:
        job.say(
            warning=f"the validation split has {reports} reports, fewer than train.global_batch "
            f"{train.global_batch}: its losses will have fewer negatives than those of training; "
            "raise source.validate_share, or set train.validate_every_steps to 0"
        )


def _known_images(job: Job, fingerprint: Mapping[str, Any]) -> list[Row]:
    """Take the images from an earlier check of the same files, whatever else has changed."""

    def about_images(of: Mapping[str, Any]) -> tuple[Any, ...]:
        settings, inputs = of["settings"], {**of["inputs"], "trained_model": ""}
        named = (settings[name] for name in ("source", "images", "seed"))
        return inputs, *named, settings["check"]["sample"]

    try:
        earlier = job.open(preflight.ARTIFACT)
    except ArtifactError:
        return []
    if about_images(earlier.fingerprint) != about_images(fingerprint):
        return []
    rows: list[Row] = read_table(earlier.path, preflight.IMAGES).to_pylist()
    return rows


def _trained(job: Job, split_of: Mapping[str, str]) -> list[str]:
    """Name evaluated patients that the model in the same folder was trained on."""
    from medclip_dcl.inference import model_package  # imports torch, which no other source needs

    model = model_package.read_model_package(model_package.ARTIFACT.at(job.work))
    trained = model.subject_hashes or frozenset()
    evaluated = (who for who, split in split_of.items() if split == job.config.evaluate.split)
    return sorted(who for who in evaluated if model_package.subject_hash(who) in trained)


main = job_main("check_data", build)

if __name__ == "__main__":
    sys.exit(main())
