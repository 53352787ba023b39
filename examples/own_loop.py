"""The debiased loss in a training loop of plain torch, on features that are drawn here.

    python examples/own_loop.py [--steps 200]

Images and texts of 20 classes are noisy views of the same class vectors. Some classes are common
and one batch holds them many times: those are false negatives, and `eta` says how often. Swap the
two linear maps for your encoders and the drawn features for your loader.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from medclip_dcl import debiased_contrastive_loss, info_nce_loss

CLASSES, WIDTH, DIM, BATCH = 20, 32, 16, 64


class TwoEncoders(nn.Module):
    """An image encoder, a text encoder and a learned scale, as in CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(WIDTH, DIM), nn.Linear(WIDTH, DIM)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Score every text against every image; also the scale."""
        scale = self.log_scale.exp().clamp(max=100)
        image = normalize(self.image(images), dim=-1)
        text = normalize(self.text(texts), dim=-1)
        return scale * text @ image.T, scale


def main() -> float:
    """Train twice, print both accuracies; gives that of the debiased loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    share = torch.linspace(2, 0, CLASSES).exp()
    share /= share.sum()  # how common each class is: in practice, from the sentence's likelihood
    accuracy = 0.0
    for name in ("InfoNCE", "debiased"):
        torch.manual_seed(0)
        centres = torch.randn(2, CLASSES, WIDTH)  # what a class looks like, and how it is worded
        model = TwoEncoders()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(steps):
            classes = torch.multinomial(share, BATCH, replacement=True)
            images, texts = (side[classes] + 3 * torch.randn(BATCH, WIDTH) for side in centres)
            s, scale = model(images, texts)  # texts are the anchors; pairs on the diagonal
            if name == "debiased":
                loss = debiased_contrastive_loss(s, None, share[classes], scale.sqrt())
            else:
                loss = info_nce_loss(s)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            s, _ = model(centres[0], centres[1])
        accuracy = float((s.argmax(dim=1) == torch.arange(CLASSES)).float().mean())
        margin = float((s.diagonal() - s.mean(dim=1)).mean())
        print(
            f"{name:10} right image of {CLASSES}: {accuracy:.2f}, ahead of the mean by {margin:.1f}"
        )
    return accuracy


if __name__ == "__main__":
    main()
