"""Images alone -> weights that the image encoder starts from: SimCLR, plain or debiased.

Two views of every image of a batch are each other's positive, and the views of all other images are
their negatives. Views are crops, turned a little, brighter or darker; never mirrored, since reports
say left and right.

Axes and symbols
    images  slots of the batch
    views   2 images: all first views, then all second ones
    s       cosine of two views over the temperature
    eta     chance that another image is of the anchor's class; 0: SimCLR's own loss

Source: Chen et al. 2020 (SimCLR); Chuang et al. 2020 (its debiased loss).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.files import write_bytes
from medclip_dcl.core.progress import Progress, available_cores
from medclip_dcl.core.rng import RngStream, generator_for, seed_for
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.losses.debiased import debiased_contrastive_loss
from medclip_dcl.models.image_encoder import MEAN, SPREAD, ImageEncoder
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.training import optim
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot
from medclip_dcl.training.settings import PretrainConfig

ARTIFACT = ArtifactType("image_weights", 1, "pretrain_images")
WEIGHTS = "model.safetensors"

TEMPERATURE = 0.2
_BATCH = 128  # images of a step, each seen twice; the learning rate suits it
_DIM = 128  # of the space in which views are compared; thrown away afterwards
_LEAST_AREA = 0.3  # share of an image that a view shows
_RATIO = 4 / 3  # of a view's sides, either way
_TURN_RAD = math.radians(10)
_JITTER = 0.4  # half-width of the factors of brightness and contrast
_WARMUP_SHARE = 0.05
_WEIGHT_DECAY = 1e-4
_LEARNING_RATE = 2e-3  # of AdamW, its peak; the weights are a start, which training tunes


class ViewLearner(nn.Module):
    """An image encoder, and the head in whose space its views are compared."""

    def __init__(self, settings: ImageEncoderConfig, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # layers draw once while they are built
            torch.manual_seed(seed)
            self.image = ImageEncoder(settings)
            width = self.image.width
            self.head = nn.Sequential(
                nn.Linear(width, 2 * _DIM), nn.ReLU(), nn.Linear(2 * _DIM, _DIM)
            )
        self.image.initialise(torch.Generator().manual_seed(seed))

    def forward(self, pixels: Float[Tensor, "views 1 side side"]) -> Float[Tensor, "views dim"]:
        """Map each view onto the unit sphere."""
        vectors: Tensor = self.head(self.image(pixels).mean(dim=(2, 3)))
        return functional.normalize(vectors, dim=1)


def draw_views(
    pixels: UInt8[Tensor, "images size size"], rng: np.random.Generator, input_px: int
) -> Float[Tensor, "views 1 input_px input_px"]:
    """Draw two views of every image: a crop, turned, with other brightness and contrast."""
    count = 2 * len(pixels)
    area = rng.uniform(_LEAST_AREA, 1, count)
    ratio = np.exp(rng.uniform(-math.log(_RATIO), math.log(_RATIO), count))
    half = np.stack([np.sqrt(area * ratio), np.sqrt(area / ratio)]).clip(max=1.0)  # of -1 to 1
    middle = rng.uniform(-1, 1, (2, count)) * (1 - half)
    angle = rng.uniform(-_TURN_RAD, _TURN_RAD, count)
    factors = 1 + _JITTER * rng.uniform(-1, 1, (2, count))
    cosine, sine = np.cos(angle), np.sin(angle)
    across = [half[0] * cosine, -half[1] * sine, middle[0]]
    down = [half[0] * sine, half[1] * cosine, middle[1]]
    affine = torch.from_numpy(np.array([across, down])).permute(2, 0, 1).float()  # (count, 2, 3)
    brightness, contrast = torch.from_numpy(factors).float().view(2, -1, 1, 1, 1)
    # All first views, then all second ones, as `view_loss` pairs them.
    shown = pixels.float().unsqueeze(1).repeat(2, 1, 1, 1) / 255
    grid = functional.affine_grid(affine, [count, 1, input_px, input_px], align_corners=False)
    # The edge is repeated in turned corners: black ones would be edges that no image has.
    shown = functional.grid_sample(shown, grid, padding_mode="border", align_corners=False)
    shown = shown * brightness
    level = shown.mean(dim=(1, 2, 3), keepdim=True)
    shown = (contrast * (shown - level) + level).clamp(0, 1)
    views: Tensor = (shown - MEAN) / SPREAD
    return views


def view_loss(vectors: Float[Tensor, "views dim"]) -> Float[Tensor, ""]:
    """Contrast each view with all others: its image's other view is the positive.

    Source: Chen et al. 2020, Eq. 1.
    """
    count = len(vectors)
    s = vectors @ vectors.T / TEMPERATURE
    positive = torch.arange(count, device=s.device).roll(count // 2)
    others = 1 - torch.eye(count, device=s.device)  # a view is no negative of itself
    return debiased_contrastive_loss(s, positive, 0.0, TEMPERATURE**-0.5, weights=others)


def pretrain(
    settings: PretrainConfig,
    encoder: ImageEncoderConfig,
    images: PreparedImages,
    rows: Sequence[int],
    seed: int,
    store: CheckpointStore,
    device: torch.device,
    *,
    save_every_steps: int,
    workers: int,
) -> tuple[ViewLearner, dict[str, Any]]:
    """Learn from some rows of the prepared images, or go on where a killed run had saved.

    Returns the learner in eval mode, and the loss of its last steps; CheckpointError where the
    newest checkpoint does not fit.
    """
    torch.set_num_threads(workers or available_cores())
    learner = ViewLearner(encoder, seed_for(seed, RngStream.PRETRAINING)).to(device)
    # Convolutions are faster in this layout.
    learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    group = {"params": list(learner.parameters()), "peak": _LEARNING_RATE}
    optimizer = AdamW([group], lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True)
    store.steps, step, losses = settings.steps, 0, []
    snapshot, _ = store.find()
    if snapshot is not None:
        learner.load_state_dict(dict(snapshot.weights))
        optim.load_optimizer_tensors(optimizer, learner, snapshot.optimizer)
        step, losses = snapshot.step, list(snapshot.state["losses"])
    warmup = max(1, round(_WARMUP_SHARE * settings.steps))
    with Progress("pretrain images", settings.steps, "step", done=step) as progress:
        while step < settings.steps:
            rng = generator_for(seed, RngStream.PRETRAINING, step)
            # Without repeats: an image twice would be its own negative.
            drawn = rng.choice(len(rows), min(len(rows), _BATCH), replace=False)
            shown = np.stack([images.pixels(rows[number]) for number in drawn.tolist()])
            pixels = torch.from_numpy(shown).to(device)
            views = draw_views(pixels, rng, encoder.input_px)
            loss = view_loss(learner(views))
            share = optim.learning_rate_share(step, warmup, settings.steps)
            optim.set_learning_rate(optimizer, share)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            losses = [*losses[-49:], loss.item()]  # saved: a resumed run reports the same mean
            progress.advance(1, loss=losses[-1])
            if step % save_every_steps == 0 and step < settings.steps:
                moments = optim.optimizer_tensors(optimizer, learner)
                store.save(Snapshot(step, learner.state_dict(), moments, {"losses": losses}))
    mean = round(float(np.mean(losses)), 4)
    return learner.eval(), {"steps": step, "images": len(rows), "loss": mean}


def write_weights(folder: Path, learner: ViewLearner) -> None:
    """Write the encoder's weights as `model.image.pretrained` reads them."""
    state = learner.image.backbone.state_dict()
    plain = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    write_bytes(folder / WEIGHTS, save(plain))
