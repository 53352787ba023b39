"""Tiny batches of views, models that see them, and one step of two processes."""

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from medclip_dcl.image_only.run import SimCLRObjective
from medclip_dcl.image_only.settings import AugmentConfig, ViewsConfig
from medclip_dcl.image_only.views import ViewBatch, draw_augmentation
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.models.view_encoder import ViewEncoder, build_view_encoder
from medclip_dcl.rng import RngStream, generator_for
from medclip_dcl.training.settings import ObjectiveConfig

SIZE, CLASSES = 8, 3
IMAGE = ImageEncoderConfig(depths=(1, 1), widths=(4, 8), stem="cifar", channels=3, input_px=SIZE)
GLOBAL_BATCH = 6


def tiny_view_encoder(**views: object) -> ViewEncoder:
    settings = ViewsConfig.model_validate({"dim": 5, "head_width": 7, **views})
    return build_view_encoder(IMAGE, settings, seed=0)


def view_batch(
    images: int = GLOBAL_BATCH, eta: float = 0.1, mine: slice | None = None, views: int = 2
) -> ViewBatch:
    """A global batch of random images; image i is of class i % 3."""
    own = slice(0, images) if mine is None else mine
    generator = torch.Generator().manual_seed(4)
    pixels = torch.randint(0, 256, (images, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    augmentation = draw_augmentation(
        generator_for(0, RngStream.LOOK, 0), views, images, SIZE, AugmentConfig()
    )
    return ViewBatch(
        step=0,
        mine=own,
        item_ids=tuple(f"train/{row}" for row in range(images)),
        pixels=pixels[own],
        augmentation=augmentation.at(own),
        eta=torch.linspace(0, 2 * eta, images),
        labels=torch.arange(images) % CLASSES,
    )


def one_step(mine: slice, anchors: str, wrapped: bool = False) -> dict[str, Tensor]:
    """Loss and every gradient of the anchors of `mine`, with M = 3."""
    views = ViewsConfig.model_validate({"anchors": anchors, "M": 3})
    model = tiny_view_encoder().eval()  # batch statistics would be local
    network = DistributedDataParallel(model) if wrapped else model
    objective = SimCLRObjective(ObjectiveConfig(), views)
    output = objective.compute_loss(network, model, view_batch(mine=mine, views=4))
    output.loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**found, "loss": output.loss.detach()}


def write_views_of_two(rank: int, folder: Path) -> None:
    """Write what one of two processes finds, averaged over both."""
    half = GLOBAL_BATCH // 2
    for anchors in ("both", "first"):
        found = one_step(slice(rank * half, (rank + 1) * half), anchors, wrapped=True)
        dist.all_reduce(found["loss"])  # DistributedDataParallel has averaged the rest
        found["loss"] /= 2
        if rank == 0:
            save_file(
                {name: value.clone() for name, value in found.items()},
                folder / f"views-{anchors}.safetensors",
            )
