"""Probe the image-only model: linear classifiers by share of the labels, and a t-SNE map.

Reads the image set and the image model; writes `probe`.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from medclip_dcl.artifact import ArtifactWriter
from medclip_dcl.config import Config
from medclip_dcl.evaluation.probe import (
    Labelled,
    ProbedSplits,
    draw_labelled,
    embed_pictures,
    map_features,
    probe_by_fraction,
)
from medclip_dcl.image_only import artifacts
from medclip_dcl.image_only.artifacts import ImageSet, ImageSplit, read_image_model
from medclip_dcl.models.view_encoder import ViewEncoder, build_view_encoder
from medclip_dcl.progress import Progress
from medclip_dcl.tables import read_table, write_table
from pipelines.job import Job, run_job

Rows = list[dict[str, Any]]


def build(job: Job) -> None:
    """Make the probe and print its accuracies.

    Args:
        job: the job.
    """
    inputs = {kind.name: job.open(kind) for kind in (artifacts.IMAGE_SET, artifacts.IMAGE_MODEL)}
    settings = {"probe": job.config.probe, "seed": job.config.seed}
    artifact = job.make(artifacts.PROBE, settings, inputs, lambda draft: _write(job, draft))
    print(_table(read_table(artifact.path, artifacts.PROBES).to_pylist()), flush=True)


def _write(job: Job, writer: ArtifactWriter) -> dict[str, Any]:
    settings = job.config.probe
    images = ImageSet(job.open(artifacts.IMAGE_SET, verify=False))
    splits = {name: images.split(name) for name in ("train", "validate", "test")}
    model = read_image_model(artifacts.IMAGE_MODEL.at(job.work))
    is_thinned = [item.is_thinned for item in images.classes]
    encoders = {"trained": _encoder(model.config)}
    encoders["trained"].load_state_dict(model.weights())
    if settings.untrained:
        encoders["untrained"] = _encoder(model.config)
    rows: Rows = []
    probes = sum(settings.draws if fraction < 1 else 1 for fraction in settings.fractions)
    with Progress("probes", probes * len(encoders), "probe") as progress:
        for name, encoder in encoders.items():
            features = _features(encoder, splits, settings.batch)
            for row in probe_by_fraction(features, is_thinned, settings, job.config.seed):
                rows.append({"encoder": name, **row})
                progress.advance(1)
            if name == "trained":
                mapped = _map(job, splits["test"], features.test)
    write_table(writer.directory, artifacts.PROBES, rows)
    write_table(writer.directory, artifacts.MAP, mapped)
    return {"probes": len(rows), "mapped": len(mapped), **_summary(rows)}


def _encoder(config: Config) -> ViewEncoder:
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    encoder = build_view_encoder(config.model.image, config.views, config.seed)
    encoder.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return encoder


def _features(encoder: ViewEncoder, splits: Mapping[str, ImageSplit], batch: int) -> ProbedSplits:
    found = {
        name: Labelled(embed_pictures(encoder, split.pixels, batch), split.labels)
        for name, split in splits.items()
    }
    return ProbedSplits(**found)


def _map(job: Job, split: ImageSplit, test: Labelled) -> Rows:
    settings, seed = job.config.probe, job.config.seed
    share = settings.tsne_images / max(1, len(test.labels))
    if share == 0 or len(test.labels) < 4:
        return []
    generator = np.random.Generator(np.random.Philox(seed))
    rows = draw_labelled(test.labels, min(1.0, share), generator)
    coordinates = map_features(test.features[rows], settings.perplexity, seed)
    return [
        {
            "image_id": split.image_ids[row],
            "label": int(test.labels[row]),
            "x": float(x),
            "y": float(y),
        }
        for row, (x, y) in zip(rows.tolist(), coordinates, strict=True)
    ]


def _summary(rows: Rows) -> dict[str, float]:
    """Mean accuracy over draws, by encoder and fraction."""
    by_cell: dict[str, list[float]] = {}
    for row in rows:
        by_cell.setdefault(f"{row['encoder']}_{row['fraction']:g}", []).append(row["accuracy"])
    return {name: round(sum(found) / len(found), 4) for name, found in by_cell.items()}


def _table(rows: Rows) -> str:
    lines = ["encoder    share of labels  labels  accuracy  whole classes  thinned classes"]
    cells = dict.fromkeys((row["encoder"], row["fraction"]) for row in rows)
    for encoder, fraction in cells:
        mine = [row for row in rows if (row["encoder"], row["fraction"]) == (encoder, fraction)]
        mean = {
            name: sum(row[name] for row in mine) / len(mine)
            for name in ("accuracy", "accuracy_whole", "accuracy_thinned")
        }
        lines.append(
            f"{encoder:10} {fraction:15g}  {mine[0]['labels']:6}  {mean['accuracy']:8.3f}"
            f"  {mean['accuracy_whole']:13.3f}  {mean['accuracy_thinned']:15.3f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from its command line."""
    return run_job("probe_images", build, argv)


if __name__ == "__main__":
    sys.exit(main())
