"""Input range: is an image like those that a model was trained on?

An image's features are the mean greys of 8 x 8 blocks, which hold the layout of a chest, and the
strength of detail at three scales. Their squared Mahalanobis distance is compared with a quantile
of images that are like those the mean and the covariance come from, but are not among them; so
images of the same kind are called out of range at the stated rate. Pixels alone are looked at: a
model does not know its own training images from others by them.

Source: ours; the threshold is that of split conformal prediction (Vovk et al. 2005), the
covariance that of Ledoit and Wolf 2004.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medclip_dcl.errors import QueryError
from medclip_dcl.model_package import InputRange

_RATE = 0.01  # share of images like the training images that is called out of range
_BLOCKS, _SCALES = 8, 3
_Reals = npt.NDArray[np.float64]


def describe_image(image: npt.NDArray[np.uint8]) -> _Reals:
    """Give the 67 features of a square image, at least 16 pixels wide.

    Returns:
        (67,): block means in [0, 1], and logarithms of the detail at three scales.
    """
    edge = _BLOCKS * (len(image) // _BLOCKS)
    level = image[:edge, :edge].astype(np.float64) / 255
    detail = []
    blocks = level.reshape(_BLOCKS, edge // _BLOCKS, _BLOCKS, edge // _BLOCKS).mean(axis=(1, 3))
    for _ in range(_SCALES):
        even = 2 * (len(level) // 2)
        level = level[:even, :even]
        coarse = level.reshape(even // 2, 2, even // 2, 2).mean(axis=(1, 3))
        detail.append(np.std(level - coarse.repeat(2, axis=0).repeat(2, axis=1)))
        level = coarse
    return np.concatenate([blocks.ravel(), np.log(np.array(detail) + 1e-3)])


def fit_input_range(
    images: Sequence[npt.NDArray[np.uint8]], patients: Sequence[str], rate: float = _RATE
) -> InputRange:
    """Learn the range of images.

    Args:
        images: square images of one size.
        patients: whose image each is; a patient's images are all fitted to, or all held back.
        rate: share of like images that may be beyond the threshold.

    Returns:
        The range. With fewer than 1 / rate images held back the farthest of them is the
        threshold, and the stated rate is 1 / (images held back + 1).

    Raises:
        QueryError: fewer than two patients.
    """
    features = np.stack([describe_image(image) for image in images])
    index_of = {name: number for number, name in enumerate(sorted(set(patients)))}
    held_back = np.array([index_of[name] % 2 == 1 for name in patients])
    if not held_back.any():
        raise QueryError("the range of images needs two patients or more; give more images")
    from sklearn.covariance import LedoitWolf  # a second to import, for the one who fits

    fitted = LedoitWolf().fit(features[~held_back])
    distances = np.sort(_distances(features[held_back], fitted.location_, fitted.precision_))
    rank = int(np.ceil((len(distances) + 1) * (1 - rate)))
    return InputRange(
        mean=tuple(fitted.location_.tolist()),
        precision=tuple(map(tuple, fitted.precision_.tolist())),
        threshold=float(distances[min(rank, len(distances)) - 1]),
        images=len(images),
        rate=max(rate, 1 / (len(distances) + 1)),
    )


def is_out_of_range(image: npt.NDArray[np.uint8], known: InputRange) -> bool:
    """Return whether a square image, of the size that the range was learnt at, is beyond it."""
    features = describe_image(image)[None]
    distance = _distances(features, np.array(known.mean), np.array(known.precision))
    return bool(distance[0] > known.threshold)


def _distances(features: _Reals, mean: _Reals, precision: _Reals) -> _Reals:
    away = features - mean
    distances: _Reals = np.einsum("nf,fg,ng->n", away, precision, away)
    return distances
