"""Settings of the image-only experiment: image set, views, and the probe of what was learned."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.evaluation.settings import Share
from medclip_dcl.section import Section


class ImageSetConfig(Section):
    """Labelled images without text (`prepare_image_set`); `kind` turns `train` image-only."""

    kind: Literal["none", "digits", "parquet", "folder"] = "none"
    """`none`: train on images and sentences; `digits`: scikit-learn's; `parquet`: tables
    `train*.parquet` and `test*.parquet`; `folder`: `train/CLASS/` and `test/CLASS/`."""
    root: str = ""
    """Folder of the tables or of the image folders."""
    image_column: str = "image"
    """Column of the tables with JPEG or PNG bytes, plain or under `bytes`."""
    label_column: str = "label"
    """Column of the tables with whole numbers from 0."""
    size_px: Annotated[int, Field(ge=8, le=512)] = 32
    """Height and width of a prepared image; others are resized, pixels."""
    channels: Literal[1, 3] = 3
    """Grey or red, green and blue; the model's `image.channels` must be the same."""
    thinned: tuple[str, ...] = ("dog", "frog", "horse", "ship", "truck")
    """Classes that are thinned, in the training split alone; paper: these five."""
    r: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of a thinned class that stays; CIFAR10-r of the paper: .05 to .9."""
    per_class: Annotated[int, Field(ge=0)] = 0
    """Most training images of a class, before thinning; 0: all."""
    validate_share: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Share of each class's training images kept back, unthinned, to choose the probe's penalty."""
    test_per_class: Annotated[int, Field(ge=0)] = 0
    """Test images of a class, drawn with the seed; 0: the source's own test split, all of it.
    `digits` has none, so a number is needed there."""


class AugmentConfig(Section):
    """How a view is drawn; the defaults are those of the papers' CIFAR experiments."""

    smallest_crop: Annotated[float, Field(gt=0, le=1)] = 0.08
    """Least share of the image that a crop shows; its sides differ by 4 : 3 at most."""
    rotation_rad: Annotated[float, Field(ge=0)] = 0.0
    """Half-width of the random rotation, radians."""
    flip: Share = 0.5
    """Chance of a flip from left to right."""
    jitter: Share = 0.8
    """Chance that brightness, contrast, saturation and hue change, in random order."""
    brightness: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Half-width of the brightness factor."""
    contrast: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Half-width of the contrast factor."""
    saturation: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Half-width of the saturation factor."""
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """Half-width of the turn of the colour circle."""
    grey: Share = 0.2
    """Chance that the colours are taken away."""
    blur: Share = 0.5
    """Chance of a Gaussian blur over 3 x 3 pixels; its deviation is uniform in [0.1, 2] pixels."""


class ViewsConfig(Section):
    """How views of one image become anchors and candidates; the defaults are the DCL paper's."""

    anchors: Literal["both", "first"] = "both"
    """`both`: both views of every image are anchors against all others, N = 2 (B - 1), as
    Chuang et al. 2020; `first`: first views against second views, N = B - 1."""
    gamma_squared: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Scale of the score, fixed; papers: gamma = sqrt(2), that is a temperature of 0.5."""
    dim: Annotated[int, Field(gt=0)] = 128
    """Width of the shared space; papers: 128."""
    head_width: Annotated[int, Field(gt=0)] = 512
    """Width of the head's hidden layer."""
    eta: Literal["low", "high", "class_share", "constant"] = "class_share"
    """`low` and `high`: .2 r / (1 + r) and .2 / (1 + r), the shares of a thinned and of a whole
    class among ten; `class_share`: the true share of the anchor's class; `constant`:
    `eta.constant`."""
    M: Annotated[int, Field(ge=1)] = 1
    """Views v in the correction: the anchor's partner, and M - 1 further ones that nothing else
    reads."""
    augment: AugmentConfig = AugmentConfig()
    """How a view is drawn."""
