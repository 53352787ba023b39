"""Features of frozen encoders, computed once: the maps into the shared space train on them.

    SPLIT-images-00000.npy   map of each image before its projection, as the service sees the image
    SPLIT-texts-00000.npy    state of each distinct sentence before its projection

Half precision, in the corpus's order. The artifact is bound to the weights, images, sentences and
word pieces; a shard that a killed run had finished is kept.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medclip_dcl.artifact import Artifact, ArtifactType, make_fingerprint, open_if_current
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import TrainingError
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.progress import Progress
from medclip_dcl.retrieval.embeddings import shard_name, write_array
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.validation import evaluating

ARTIFACT = ArtifactType("features", 1, "train")

_SHARD_BYTES = 2**26
PER_PASS = 32
"""Images or sentences of one pass of an encoder."""


def cache_features(
    work: Path,
    encoder: DualEncoder,
    model: ModelConfig,
    prepared: PreparedImages,
    inputs: Mapping[str, Artifact],
    splits: Mapping[str, tuple[Corpus, TokenTable]],
    device: torch.device,
) -> Artifact:
    """Run both encoders over the images and sentences of some splits, unless that is done already.

    Args:
        work: folder that has the artifacts of the run.
        encoder: the model before its first step; it is moved to the device.
        model: its settings.
        prepared: the images.
        inputs: what the corpora were read from.
        splits: corpus and word pieces by the name of the split.
        device: where the encoders run.

    Raises:
        TrainingError: a feature is too large for half precision.
    """
    digests: dict[str, Artifact | str] = {
        **inputs,
        "image_weights": _weights_digest(encoder.image),
        "text_weights": _weights_digest(encoder.text.backbone),
        **{f"{name}_tokens": tokens.digest for name, (_, tokens) in splits.items()},
    }
    settings = {
        "input_px": model.image.input_px,
        "regions": model.image.regions,
        "normalisation": model.image.normalisation,
        "pooling": encoder.text.pooling,
    }
    fingerprint = make_fingerprint(ARTIFACT, settings, digests)
    path = ARTIFACT.at(work)
    if (existing := open_if_current(path, ARTIFACT, fingerprint)) is not None:
        return existing
    encoder.to(device)
    counts: dict[str, Any] = {}
    with write_artifact(path, ARTIFACT, fingerprint) as writer, evaluating(encoder):
        for name, (corpus, tokens) in splits.items():

            def image_features(rows: np.ndarray, corpus: Corpus = corpus) -> Tensor:
                pixels = np.stack([prepared.pixels(int(row)) for row in corpus.image_rows[rows]])
                features: Tensor = encoder.image(to_input(pixels, model.image.input_px).to(device))
                return features

            def text_features(rows: np.ndarray, tokens: TokenTable = tokens) -> Tensor:
                ids, mask = tokens.padded(rows)
                return encoder.text.pooled(ids.to(device), mask.to(device))

            counts[f"{name}_images"] = len(corpus.image_ids)
            counts[f"{name}_texts"] = len(corpus.texts)
            write = partial(_write, writer.directory)
            write(f"{name}-images", len(corpus.image_ids), image_features)
            write(f"{name}-texts", len(corpus.texts), text_features)
        return writer.commit(counts)


def _write(folder: Path, name: str, count: int, encode: Callable[[np.ndarray], Tensor]) -> None:
    if not count:
        return
    each = encode(np.arange(1)).numel() * 2
    size = max(1, min(count, _SHARD_BYTES // each))
    with Progress(f"features of {name}", count, "row") as progress:
        for shard, start in enumerate(range(0, count, size)):
            stop = min(start + size, count)
            file = folder / shard_name(name, shard)
            if not file.is_file():  # finished before a kill
                parts = [
                    encode(np.arange(begin, min(begin + PER_PASS, stop))).half().cpu()
                    for begin in range(start, stop, PER_PASS)
                ]
                features = torch.cat(parts)
                if not bool(features.isfinite().all()):
                    raise TrainingError(
                        f"{name} have a feature that half precision cannot hold; set "
                        "train.cache_features to false and freeze the encoders by their steps"
                    )
                write_array(file, features.numpy())
            progress.advance(stop - start)


def _weights_digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
