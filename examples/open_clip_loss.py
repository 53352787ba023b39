"""A loss with the call of open_clip's `ClipLoss`, corrected for false negatives.

    python examples/open_clip_loss.py

In open_clip's training script, replace the loss by `DebiasedClipLoss()` and hand the batch's
`eta` on: one number per caption, from `eta_from_pll` or a constant. With eta = 0 it is
open_clip's loss, which this script checks. Features of several processes are gathered exactly.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from medclip_dcl import debiased_contrastive_loss, gather_with_grad


class DebiasedClipLoss(nn.Module):
    """Mean of both directions; called as `ClipLoss` is, with `eta` besides."""

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        eta: Tensor | float = 0.0,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """Compute the loss.

        Args:
            image_features: (pairs, dim) of this process, of unit length.
            text_features: the same of the captions.
            logit_scale: the scale itself, not its logarithm.
            eta: class probability of each caption of this process, or one for all.
            output_dict: whether to wrap the loss as open_clip's training script wants it.
        """
        images, texts = gather_with_grad(image_features), gather_with_grad(text_features)
        etas = torch.as_tensor(eta, device=texts.device).expand(len(text_features))
        etas = gather_with_grad(etas.contiguous())
        s = logit_scale * texts @ images.T
        gamma = logit_scale.sqrt()  # |s| <= gamma**2
        of_texts = debiased_contrastive_loss(s, None, etas, gamma)
        of_images = debiased_contrastive_loss(s.T, None, etas, gamma)
        loss = (of_texts + of_images) / 2
        return {"contrastive_loss": loss} if output_dict else loss


def main() -> float:
    """Compare with open_clip's formula at eta = 0, then show what a correction changes."""
    torch.manual_seed(0)
    images, texts = (normalize(torch.randn(32, 64), dim=-1) for _ in range(2))
    scale = torch.tensor(1 / 0.07)
    logits, labels = scale * images @ texts.T, torch.arange(32)
    clip = (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
    loss = DebiasedClipLoss()
    same = float(loss(images, texts, scale))
    corrected = loss(images, texts, scale, eta=0.05, output_dict=True)["contrastive_loss"]
    print(f"open_clip {clip:.6f}   eta 0: {same:.6f}   eta 0.05: {float(corrected):.6f}")
    return abs(same - float(clip))


if __name__ == "__main__":
    main()
