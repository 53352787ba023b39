"""What the image tower reaches with the experts' labels: a zero-shot row is read against it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW

from benchmarks.method.real_studies.questions import (
    QUESTIONS,
    Figures,
    encode_maps,
    judge_scores,
    labels_of,
)
from benchmarks.method.real_studies.studies import Fold
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.training.optim import learning_rate_share
from medclip_dcl.training.setup import TrainSetup


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
        batch = setup.dataset.batch(step)
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
    tested = [(patient.uid, path) for patient in fold.tested for path in patient.images]
    with torch.no_grad():
        features = encode_maps(setup, [path for _, path in tested])
        logits = head(features).double().numpy().T
    owners = [uid for uid, _ in tested]
    prompts = np.zeros((2 * len(QUESTIONS), len(tested)))
    prompts[::2] = logits  # the positive sentence's score; the negative one's is 0
    return judge_scores(fold, owners, prompts)
