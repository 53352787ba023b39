from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.likelihood.fitting import train_tokenizer
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.corpus import TokenTable
from medclip_dcl.training.settings import TrainConfig
from medclip_dcl.training.validation import ValidationMetrics, validation_batch
from pipelines.config import Config
from tests.support.corpus import KINDS, made, read_tiny_corpus
from tests.support.tiny_models import tiny_dual_encoder, tiny_model_config

FINDINGS = (
    Finding("pneumonia", (KINDS[0][1],), (KINDS[3][1],), label="Pneumonia"),
    Finding("edema", ("edema",), ("no edema",), label="Edema"),
)
TOKENIZER = train_tokenizer([text for _, *said in KINDS for text in said], 200, 32)


def questions(work: Path, images: int = 100, best: str = "") -> ValidationMetrics:
    """Those to the eight studies of the validation split, s024 to s031."""
    train = {"validate_images": images, "validate_every_steps": 1, "best_metric": best}
    config = Config.model_validate({"work": str(work), "train": train}).model_copy(
        update={"model": tiny_model_config(input_px=32)}
    )
    return ValidationMetrics(
        TrainingConfig.of(config),
        read_tiny_corpus(work, "validate"),
        made(work, manifest.ARTIFACT),
        made(work, labels.ARTIFACT),
        PreparedImages(made(work, prepared.ARTIFACT)),
        FINDINGS,
        lambda texts: TokenTable(TOKENIZER, texts, 32),
    )


def test_a_small_split_is_one_batch_and_one_without_a_batch_is_named() -> None:
    for studies, processes, expected in ((500, 4, 64), (64, 1, 64), (19, 1, 19), (19, 4, 16)):
        assert validation_batch(studies, TrainConfig(processes=processes)) == expected
    for studies, processes in ((0, 1), (1, 1), (3, 4)):
        with pytest.raises(ConfigError, match=f"the validation split has {studies} studies"):
            validation_batch(studies, TrainConfig(processes=processes))


def test_every_study_is_asked_once_and_choosing_needs_images_with_and_without_a_finding(work):
    validation_metrics = questions(work)
    assert validation_metrics.truth.shape == (2, 8)
    # No label says 0: the source leaves it blank.
    assert (validation_metrics.truth[0] == 1).sum() == 2
    assert (validation_metrics.truth[1] == -1).all()
    assert questions(work, images=3).truth.shape[1] == 3
    with pytest.raises(ConfigError, match="with and without"):
        questions(work, best="validation_auc")


ENCODER = tiny_dual_encoder(tiny_model_config(input_px=32), vocabulary=len(TOKENIZER)).eval()


@torch.no_grad()
def test_figures_are_those_of_the_scores_by_labels_and_by_reports_where_there_are_none(work):
    validation_metrics = questions(work, best="validation_report_auc")
    # Two of the eight reports assert a pneumonia, the other six are silent; no one has edema.
    assert sorted(validation_metrics.reported[0].tolist()) == [0] * 6 + [1] * 2
    assert (validation_metrics.reported[1] == 0).all()
    truth = np.where(validation_metrics.truth == 1, 1, 0).astype(np.int8)
    truth[1] = -1
    validation_metrics.truth = truth
    found = validation_metrics(ENCODER, torch.device("cpu"))
    prepared_images = PreparedImages(made(work, prepared.ARTIFACT))
    pixels = np.stack([prepared_images.pixels(row) for row in validation_metrics.rows])
    regions = ENCODER.encode_images(to_input(pixels, 32))
    ids, mask = validation_metrics.prompts.padded(np.arange(2))
    yes, no = ENCODER.score(regions, ENCODER.encode_sentences(ids, mask))
    expected = pytest.approx(roc_auc_score(truth[0], yes - no))
    assert found == {"validation_auc": expected, "validation_report_auc": expected}
