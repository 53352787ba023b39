"""What the image tower reaches with the experts' labels: a zero-shot row is read against it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn
from torch.optim import AdamW

from benchmarks.method.real_studies.questions import (
    QUESTIONS,
    Figures,
    encode_maps,
    judge_scores,
    labels_of,
    pooled,
    probe,
)
from benchmarks.method.real_studies.studies import Fold
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.training.optim import learning_rate_share
from medclip_dcl.training.setup import TrainSetup
from medclip_dcl.training.validation import evaluating


def train_with_labels(
    setup: TrainSetup, fold: Fold, say: Callable[..., None]
) -> tuple[Figures, dict[str, Any]]:
    """Train the tower and a linear layer on a row's batches, and ask it on the tested patients.

    Crops, batches, rate and steps are a row's; the loss is the cross entropy of each label.
    """
    train, tower = setup.config.train, setup.encoder.image
    torch.manual_seed(setup.config.seed)
    head = nn.Linear(tower.width, len(QUESTIONS))
    parameters = [*tower.parameters(), *head.parameters()]
    optimizer = AdamW(parameters, lr=train.learning_rate, weight_decay=train.weight_decay)
    steps = train.steps
    tower.train()
    for step in range(steps):
        batch = setup.data.dataset.batch(step)
        shown = torch.from_numpy(labels_of(fold, batch.study_ids).T).float()
        pixels = to_input(batch.crops[:, 0], batch.crops.shape[-1])
        loss = nn.functional.binary_cross_entropy_with_logits(
            head(tower(pixels).mean(dim=(2, 3))), shown
        )
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate * learning_rate_share(step, train.warmup_steps, steps)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 50 == 0:
            say(step=step, loss=round(loss.item(), 4))
    tower.eval()
    tested = [path for patient in fold.tested for path in patient.images]
    with torch.no_grad():
        logits = head(encode_maps(setup, tested)).double().numpy().T
    return judge_logits(fold, logits)


def probe_with_labels(setup: TrainSetup, fold: Fold) -> tuple[Figures, dict[str, Any]]:
    """Fit a linear layer on the tower as it starts, and ask it: what its first weights hold."""
    learned = [(patient.uid, path) for patient in fold.training for path in patient.images]
    tested = [path for patient in fold.tested for path in patient.images]
    with evaluating(setup.encoder):
        features, judged = (pooled(setup, each) for each in ([path for _, path in learned], tested))
    known = labels_of(fold, [uid for uid, _ in learned])
    return judge_logits(fold, np.stack([probe(features, each, judged) for each in known]))


def judge_logits(
    fold: Fold, logits: Float[np.ndarray, "findings images"]
) -> tuple[Figures, dict[str, Any]]:
    """Judge a logit a finding: it is the positive sentence's score, the negative one's is 0."""
    owners = [patient.uid for patient in fold.tested for _ in patient.images]
    prompts = np.stack([logits, np.zeros_like(logits)], axis=1).reshape(2 * len(logits), -1)
    return judge_scores(fold, owners, prompts)
