"""A tiny work folder: every artifact that training reads, made straight from its format.

Studies come in four kinds, each with its own bright patch and its own sentences, so that
a model has something to learn. Each patient has one study; every fourth study has two
images. Patients p000, p001, ... are split 8 : 1 : 1.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import BertForMaskedLM

from medclip_dcl.core.artifact import Artifact, ArtifactType, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.files import write_text
from medclip_dcl.core.tables import TableFormat, write_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.likelihood.fitting import train_tokenizer
from medclip_dcl.likelihood.masked_lm import save_language_model
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import text_key
from medclip_dcl.training.corpus import Corpus, read_corpus
from tests.support.tiny_models import tiny_text_config

ETA = 0.05
TINY_DEMO = (
    "generate.patients=40",
    "generate.size_px=64",
    "workers=1",
    "source.max_reject_share=0.9",
    "images.size_px=64",
    "model.image.input_px=56",
    "language_model.steps=2",
    "train.steps=4",
    "train.global_batch=8",
    "train.warmup_steps=1",
    "train.save_every_steps=2",
    "evaluate.retrieval_pool=8",
    "evaluate.bootstrap=4",
)
"""Settings with which `configs/demo.yaml` takes seconds, its stages and formats unchanged."""
KINDS = (
    ("Pneumonia", "left lower lobe pneumonia is seen", "pneumonia on the left side"),
    ("Cardiomegaly", "the heart is enlarged", "cardiomegaly is present today"),
    ("Pneumothorax", "a right apical pneumothorax", "pneumothorax on the right side"),
    ("No Finding", "no acute cardiopulmonary process", "the lungs are clear today"),
)
"""Label, and the sentences that studies of a kind say."""
BOXED = {"Pneumonia": KINDS[0][1], "Pneumothorax": KINDS[2][1]}
"""Label -> sentence of the box that its test images get."""


def write_corpus(
    work: Path,
    studies: int = 40,
    size_px: int = 40,
    eta: float = ETA,
    dropout: float = 0.1,
    *,
    with_truth: bool = False,
    repeated: Sequence[str] = (),
) -> Path:
    """Write all artifacts of a tiny corpus; every sentence has the class probability `eta`.

    With truth labels are 1 and 0, test images have a box over their bright patch, and an image was
    rejected. The first images of all patients that are `repeated` show the same.
    """
    work.mkdir(parents=True, exist_ok=True)
    rows = [_study(number, studies) for number in range(studies)]
    _write_manifest(work, rows, with_truth)
    _write_prepared(work, rows, size_px, [f"image{name[1:]}a" for name in repeated])
    said = (sentence_rows(row["ids"], KINDS[row["kind"]][1:]) for row in rows)
    commit_tables(work, sentences.ARTIFACT, {sentences.SENTENCES: list(chain(*said))})
    _write_claims(work, rows)
    _write_language_model(work, dropout)
    write_eta(work, eta)
    return work


def commit_tables(
    work: Path, kind: ArtifactType, tables: Mapping[TableFormat, Any], **settings: Any
) -> Artifact:
    """Commit an artifact of tables alone, whose fingerprint is made of the settings."""
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, settings, {})) as writer:
        for form, rows in tables.items():
            write_table(writer.directory, form, rows)
        return writer.commit({})


def made(work: Path, kind: ArtifactType) -> Artifact:
    """Open an artifact of a work folder."""
    return open_artifact(kind.at(work), kind)


def write_eta(work: Path, value: float) -> Artifact:
    """Write the eta cache: one value for every sentence, and how the job would have made it."""
    texts = sorted(text_key(text) for _, *said in KINDS for text in said)
    table = [
        {"text_key": key, "eta": value, "pll_nats": -4.0, "tokens": 5, "count": 1} for key in texts
    ]
    settings = {"source": "pll", "a": 0.2, "k": 0.35, "eta_max": 0.2}
    return commit_tables(work, eta.ARTIFACT, {eta.ETA: table}, eta=settings, value=value)


def read_tiny_corpus(work: Path, split: str = "train") -> Corpus:
    """Read the studies of a split as the trainer does."""
    images = PreparedImages(made(work, prepared.ARTIFACT))
    studies, said, cache = (
        made(work, kind) for kind in (manifest.ARTIFACT, sentences.ARTIFACT, eta.ARTIFACT)
    )
    return read_corpus(studies, images, said, cache, split)


def write_config(path: Path, work: Path, **sections: Mapping[str, Any]) -> Path:
    """Write a config that trains a tiny model on a tiny corpus within seconds.

    `sections` are settings that go over the tiny ones.
    """
    tree: dict[str, Any] = {
        "work": str(work),
        "workers": 1,
        "images": {"size_px": 40},
        "model": {
            "image": {"depths": [1, 1], "widths": [8, 16], "input_px": 32},
            "similarity": {"dim": 16},
        },
        "train": {
            "global_batch": 8,
            "steps": 12,
            "learning_rate": 1e-2,
            "warmup_steps": 2,
            "save_every_steps": 4,
        },
    }
    for name, settings in sections.items():
        tree[name] = {**tree.get(name, {}), **settings}
    write_text(path, yaml.safe_dump(tree))
    return path


def _study(number: int, studies: int) -> dict[str, Any]:
    share = number / studies
    split = "train" if share < 0.6 else "validate" if share < 0.8 else "test"
    images = [f"image{number:03d}a", f"image{number:03d}b"][: 2 if number % 4 == 0 else 1]
    ids = {"study_id": f"s{number:03d}", "subject_id": f"p{number:03d}", "split": split}
    return {"ids": ids, "kind": number % len(KINDS), "images": images}


def _write_manifest(work: Path, rows: list[dict[str, Any]], with_truth: bool) -> None:
    images = [
        {"image_id": image, **row["ids"], "view": "PA", "path": f"{image}.png"}
        for row in rows
        for image in row["images"]
    ]
    unsaid = {"impression": "", "last_paragraph": ""}
    reports, labels, boxes = [], [], []
    for row in rows:
        label, *texts = KINDS[row["kind"]]
        reports.append({**row["ids"], "findings": ". ".join(texts), **unsaid})
        states = dict.fromkeys(LABELS) | {label: 1}
        if with_truth:
            states |= {name: int(name == label) for name in ("Pneumonia", "Pleural Effusion")}
            boxes += _boxes(row, label)
        labels.append({"study_id": row["ids"]["study_id"], **states})
    lost = {"id": "lost", "stage": "build_manifest", "reason": "missing_image"}
    tables = {
        manifest.IMAGES: images,
        manifest.REPORTS: reports,
        manifest.STUDY_LABELS: labels,
        manifest.BOXES: boxes,
        manifest.REJECTS: [lost] * with_truth,
    }
    commit_tables(work, manifest.ARTIFACT, tables, with_truth=with_truth)


def _boxes(row: dict[str, Any], label: str) -> list[dict[str, Any]]:
    if row["ids"]["split"] != "test" or label not in BOXED:
        return []
    box = {"x": 0.0, "y": 0.0 if label == "Pneumonia" else 20.0, "width": 20.0, "height": 20.0}
    box |= {"image_width": 40, "image_height": 40, "category": label, "phrase": BOXED[label]}
    subject = row["ids"]["subject_id"]
    return [{"image_id": image, "subject_id": subject, **box} for image in row["images"]]


def _write_prepared(
    work: Path, rows: list[dict[str, Any]], size_px: int, repeated: Sequence[str]
) -> None:
    rng = np.random.default_rng(0)
    names = sorted((image, row["kind"]) for row in rows for image in row["images"])
    images = rng.integers(60, 120, (len(names), size_px, size_px), dtype=np.uint8)
    half = size_px // 2
    for image, (_, number) in zip(images, names, strict=True):
        top, left = (number // 2) * half, (number % 2) * half
        image[top : top + half, left : left + half] += 100
    same = [row for row, (name, _) in enumerate(names) if name in repeated]
    images[same] = images[same[:1]]
    sizes = np.full((len(names), 2), size_px, dtype=np.int32)
    kind, summary = prepared.ARTIFACT, {"size_px": size_px, "images": len(names)}
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, summary, {})) as writer:
        ids = [name for name, _ in names]
        prepared.write_shard(writer.directory, 0, ids, images, sizes, [])
        writer.commit(summary)


def sentence_rows(ids: Mapping[str, str], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the table of sentences: what the findings of a study say."""
    return [
        {**ids, "section": "findings", "position": at, "text": text, "text_key": text_key(text)}
        for at, text in enumerate(texts)
    ]


def _write_claims(work: Path, rows: list[dict[str, Any]]) -> None:
    claims, of_texts = [], []
    for label, *texts in KINDS:
        normal = label == "No Finding"
        claims.append({"asserted": [label] * (not normal), "normal": normal})
        claims[-1] |= {"negated": [], "uncertain": []}
        of_texts += [{"text_key": text_key(text), **claims[-1]} for text in texts]
    of_texts.sort(key=lambda row: row["text_key"])
    of_reports = [{"study_id": row["ids"]["study_id"], **claims[row["kind"]]} for row in rows]
    tables = {labels.SENTENCE_CLAIMS: of_texts, labels.REPORT_CLAIMS: of_reports}
    commit_tables(work, labels.ARTIFACT, tables)


def _write_language_model(work: Path, dropout: float) -> None:
    texts = [text for _, *said in KINDS for text in said]
    tokenizer = train_tokenizer(texts, 200, 32)
    settings = tiny_text_config(len(tokenizer))
    settings.hidden_dropout_prob = settings.attention_probs_dropout_prob = dropout
    kind = masked_lm.ARTIFACT
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, {}, {})) as writer:
        with torch.random.fork_rng(devices=()):
            # A fixture of a module begins before any test's seed.
            torch.default_generator.manual_seed(0)
            save_language_model(BertForMaskedLM(settings), tokenizer, writer.directory)
        writer.commit({})
