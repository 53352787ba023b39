"""Fit the masked language model that scores the sentences.

Reads sentences, writes language_model with its card, and tells what share of the masked word
pieces of held-out reports it restores. Trains a small BERT on the training split, or
fine-tunes `language_model.pretrained`, or takes that as it is (`language_model.fit: false`).
A killed fit goes on from its last saved state.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from medclip_dcl.artifact import Artifact, ArtifactWriter, json_digest
from medclip_dcl.config import resolve_path
from medclip_dcl.distributed import available_cores
from medclip_dcl.errors import ConfigError, ReportError
from medclip_dcl.files import write_text
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.likelihood.fitting import (
    Corpus,
    FitState,
    FitStateFile,
    fit_model,
    language_model_card,
    masked_accuracy,
    train_tokenizer,
)
from medclip_dcl.likelihood.masked_lm import (
    LanguageModel,
    checkpoint_digests,
    load_language_model,
    save_language_model,
)
from medclip_dcl.likelihood.pll import encode_sentences
from medclip_dcl.likelihood.settings import LanguageModelConfig
from medclip_dcl.progress import Progress
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from pipelines.job import Job, run_job

_POSITIONS = 512


def build(job: Job) -> None:
    """Make the language model.

    Args:
        job: the job's frame.

    Raises:
        ConfigError: no model is to be fitted and none is given.
    """
    settings = job.config.language_model
    pretrained = resolve_path(settings.pretrained, job.config) if settings.pretrained else None
    if pretrained is None and not settings.fit:
        raise ConfigError("language_model.fit is false and no pretrained is set; set one of them")
    digest = json_digest(checkpoint_digests(pretrained)) if pretrained else ""
    if not settings.fit and pretrained is not None:
        job.make(
            masked_lm.ARTIFACT,
            {"fit": False},
            {"pretrained": digest},
            lambda draft: _copy(draft, pretrained, digest),
        )
        return
    source = job.open(sentences.ARTIFACT)
    asked = settings.model_dump(mode="json", exclude={"pretrained", "save_every_s", "threads"})
    job.make(
        masked_lm.ARTIFACT,
        {"language_model": asked, "seed": job.config.seed},
        {"sentences": source, "pretrained": digest},
        lambda draft: _publish(
            draft,
            _fit(draft, source, settings, pretrained, job.config.seed),
            {**asked, "seed": job.config.seed, "sentences": source.digest},
            digest,
        ),
    )


def _copy(writer: ArtifactWriter, pretrained: Path, digest: str) -> Mapping[str, Any]:
    loaded = load_language_model(pretrained)
    save_language_model(loaded.model, loaded.tokenizer, writer.directory)
    facts = {"fitted": False, "ignored_keys": len(loaded.ignored), **_size(loaded)}
    return _publish(writer, facts, {}, digest)


def _publish(
    writer: ArtifactWriter, facts: Mapping[str, Any], settings: Mapping[str, Any], began: str
) -> Mapping[str, Any]:
    """Lay the card beside the model."""
    card = language_model_card(facts, settings, began)
    write_text(writer.directory / masked_lm.CARD, card)
    return facts


def _fit(
    writer: ArtifactWriter,
    source: Artifact,
    settings: LanguageModelConfig,
    pretrained: Path | None,
    seed: int,
) -> Mapping[str, Any]:
    torch.set_num_threads(settings.threads or available_cores())
    fitted, held_out = _texts(source, settings.held_out_share)
    loaded = load_language_model(pretrained) if pretrained else _small_bert(fitted, settings, seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded.model.to(device)  # type: ignore[arg-type] # transformers wraps it untyped
    corpus, dropped = _corpus(loaded, fitted, settings.max_tokens)
    unseen, _ = _corpus(loaded, held_out, settings.max_tokens)
    state = FitStateFile(writer.directory)
    before = _before(loaded, unseen, settings, seed) if pretrained else {}
    loss = _train(loaded.model, corpus, settings, seed, state)
    scores = masked_accuracy(loaded.model, unseen, settings.mask_share, settings.batch, seed)
    save_language_model(loaded.model, loaded.tokenizer, writer.directory)
    state.remove()
    return {
        "fitted": True,
        "sentences": len(corpus),
        "held_out_sentences": len(unseen),
        "dropped_too_long": dropped,
        "loss_nats": round(loss, 5),
        **before,
        **{name: round(value, 5) for name, value in scores.items()},
        "ignored_keys": len(loaded.ignored),
        **_size(loaded),
    }


def _before(
    loaded: LanguageModel, unseen: Corpus, settings: LanguageModelConfig, seed: int
) -> dict[str, float]:
    """Measure what a pretrained model restores before it is fitted."""
    scores = masked_accuracy(loaded.model, unseen, settings.mask_share, settings.batch, seed)
    return {"held_out_accuracy_before": round(scores["held_out_accuracy"], 5)}


def _texts(source: Artifact, held_out_share: float) -> tuple[list[str], list[str]]:
    """Cut the training split's sentences by report."""
    table = read_table(source.path, sentences.SENTENCES, ["study_id", "split", "text"])
    rows = [row for row in table.to_pylist() if row["split"] == "train"]
    kept_back = {
        study for study in {row["study_id"] for row in rows} if _share(study) < held_out_share
    }
    fitted = [row["text"] for row in rows if row["study_id"] not in kept_back]
    held_out = [row["text"] for row in rows if row["study_id"] in kept_back]
    if not fitted or not held_out:
        raise ReportError(
            f"{len(rows)} training sentences are too few to fit to and hold out from; add reports"
        )
    return fitted, held_out


def _share(study_id: str) -> float:
    """Give a number in [0, 1) that is fixed by the id."""
    return int(sentences.text_key(study_id)[:8], 16) / 2**32


def _small_bert(texts: Sequence[str], settings: LanguageModelConfig, seed: int) -> LanguageModel:
    tokenizer = train_tokenizer(texts, settings.vocabulary, _POSITIONS)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * settings.hidden_size,
        max_position_embeddings=_POSITIONS,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(BertForMaskedLM(config), tokenizer, ())


def _corpus(loaded: LanguageModel, texts: Sequence[str], max_tokens: int) -> tuple[Corpus, int]:
    encodings = encode_sentences(loaded.tokenizer, texts)
    kept = [item for item in encodings if len(item.ids) <= max_tokens]
    if not kept:
        raise ReportError("every sentence is longer than language_model.max_tokens; raise it")
    tokenizer: BertTokenizer = loaded.tokenizer
    corpus = Corpus(kept, len(tokenizer), tokenizer.mask_token_id)
    return corpus, len(encodings) - len(kept)


def _train(
    model: BertForMaskedLM,
    corpus: Corpus,
    settings: LanguageModelConfig,
    seed: int,
    file: FitStateFile,
) -> float:
    """Fit with progress and saved states; return the last loss."""
    start = file.read()
    done = start.step if start else 0
    last, saved_at = 0.0, time.monotonic()
    with Progress("fit language model", settings.steps, "step", done) as bar:

        def after_step(step: int, loss: float, state: Callable[[], FitState]) -> None:
            nonlocal last, saved_at
            last = loss
            bar.advance(1, nats=loss)
            if time.monotonic() - saved_at >= settings.save_every_s and step < settings.steps:
                file.write(state())
                saved_at = time.monotonic()

        fit_model(model, corpus, settings, seed, start=start, after_step=after_step)
    return last


def _size(loaded: LanguageModel) -> dict[str, int]:
    return {
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "vocabulary": len(loaded.tokenizer),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    return run_job("fit_language_model", build, argv)


if __name__ == "__main__":
    sys.exit(main())
