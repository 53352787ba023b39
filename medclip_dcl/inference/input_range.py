"""Input range: is an image like those that a model was trained on?

An image is described by where its edges run and in which direction, by the strength of detail at
four scales and by how its greys are spread. A chest's ribs, spine and diaphragm make the first much
alike from one hospital to the next, whatever the exposure and the borders, which mean greys of
blocks do not: as `results/input_range.json` says. The squared Mahalanobis distance of these
features is compared with a quantile of images of other patients than the mean and the covariance
come from, every training image in turn; so images of the same kind are called out of range at about
the stated rate. Pixels alone are looked at: a model does not know its own training images from
others by them.

Source: ours; histograms of oriented gradients are those of Dalal and Triggs 2005, the covariance
that of Ledoit and Wolf 2004, the threshold as in cross-conformal prediction (Vovk 2015).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from medclip_dcl.core.errors import QueryError
from medclip_dcl.inference.model_package import InputRange

_RATE = 0.01  # share of images like the training images that is called out of range
_FOLDS = 5
_SIDE_PX, _CELLS, _DIRECTIONS, _SCALES = 96, 4, 6, 4
_LEVELS = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_Reals = npt.NDArray[np.float64]


def describe_pixels(image: npt.NDArray[np.uint8]) -> _Reals:
    """Return the 107 features of a square image.

    Returns:
        (107,): square roots of the shares of edges in 4 x 4 cells and 6 directions, times 4;
        logarithms of the detail at four scales, finest first; quantiles of the greys in [0, 1].
    """
    side = (_SIDE_PX, _SIDE_PX)
    method = Image.Resampling.BOX if len(image) >= _SIDE_PX else Image.Resampling.BILINEAR
    level = np.asarray(Image.fromarray(image).resize(side, method), dtype=np.float64) / 255
    return np.concatenate([4 * _edges(level).ravel(), _detail(level), np.quantile(level, _LEVELS)])


def _edges(level: _Reals) -> _Reals:
    down, right = np.gradient(ndimage.gaussian_filter(level, 0.8))
    turn = np.arctan2(down, right) % np.pi / np.pi  # an edge and its reverse are one
    direction = (turn * _DIRECTIONS).astype(int) % _DIRECTIONS
    cell = _SIDE_PX // _CELLS
    strength = np.where(
        np.arange(_DIRECTIONS) == direction[..., None], np.hypot(down, right)[..., None], 0
    )
    cells = strength.reshape(_CELLS, cell, _CELLS, cell, _DIRECTIONS).sum(axis=(1, 3))
    shares: _Reals = np.sqrt(cells / (cells.sum() + 1e-6))
    return shares


def _detail(level: _Reals) -> _Reals:
    strengths = []
    for _ in range(_SCALES):
        half = len(level) // 2
        coarse = level.reshape(half, 2, half, 2).mean(axis=(1, 3))
        strengths.append(np.std(level - coarse.repeat(2, axis=0).repeat(2, axis=1)))
        level = coarse
    return np.log(np.array(strengths) + 1e-3)


def fit_input_range(
    images: Sequence[npt.NDArray[np.uint8]], patients: Sequence[str], rate: float = _RATE
) -> InputRange:
    """Learn the range of images.

    Args:
        images: square images of one size.
        patients: whose image each is; a patient's images are all held back at once.
        rate: share of like images that may be beyond the threshold.

    Returns:
        The range. With fewer than 1 / rate images the farthest of them is the threshold, and the
        stated rate is 1 / (images + 1).

    Raises:
        QueryError: fewer than two patients.
    """
    features = np.stack([describe_pixels(image) for image in images])
    fold_of = {name: number % _FOLDS for number, name in enumerate(sorted(set(patients)))}
    if len(fold_of) < 2:
        raise QueryError("the range of images needs two patients or more; give more images")
    from sklearn.covariance import LedoitWolf  # a second to import, for the one who fits

    folds = np.array([fold_of[name] for name in patients])
    held_back = []
    for fold in sorted(set(folds.tolist())):
        fitted = LedoitWolf().fit(features[folds != fold])
        held_back.append(fitted.mahalanobis(features[folds == fold]))
    distances = np.sort(np.concatenate(held_back))
    rank = int(np.ceil((len(distances) + 1) * (1 - rate)))
    fitted = LedoitWolf().fit(features)
    return InputRange(
        features="edges",
        mean=tuple(fitted.location_.tolist()),
        precision=tuple(map(tuple, fitted.precision_.tolist())),
        threshold=float(distances[min(rank, len(distances)) - 1]),
        images=len(images),
        rate=max(rate, 1 / (len(distances) + 1)),
    )


def is_out_of_range(image: npt.NDArray[np.uint8], fitted: InputRange) -> bool:
    """Return whether a square image, of the size that the range was learnt at, is beyond it."""
    mean, precision = fitted.arrays
    away = describe_pixels(image) - mean
    return bool(away @ precision @ away > fitted.threshold)
