"""Settings of evaluation, retrieval index and report."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.config.section import Section


class EvaluateConfig(Section):
    """Questions put to a trained model (`evaluate`)."""

    split: Literal["validate", "test"] = "test"
    """Split that is evaluated."""
    prompts: str = "configs/prompts/chex5.yaml"
    """Prompt pairs: a finding, its positive and its negative prompt."""
    gallery: str = ""
    """Gallery that boxes are matched with, one sentence a line; empty: the generator's, if any."""
    allow_contaminated: bool = False
    """Whether a model is evaluated on patients, or on pictures, that it was trained on."""
    batch: Annotated[int, Field(gt=0)] = 64
    """Films in one forward pass."""
    pairs: Annotated[int, Field(ge=0)] = 1000
    """Films in the pool of film-report retrieval, drawn with the seed; 0: it is left out."""
    heatmap_px: Annotated[int, Field(ge=16)] = 1024
    """Longer side at which heatmaps meet boxes, pixels; smaller films keep their size."""
    bootstrap: Annotated[int, Field(ge=0)] = 1000
    """Patient-level bootstrap samples for 95 % intervals; 0: none."""


class IndexConfig(Section):
    """Retrieval (`build_index`)."""

    splits: tuple[str, ...] = ("train", "validate", "test")
    """Splits whose films and sentences are indexed."""
    candidates: Annotated[int, Field(gt=0)] = 200
    """Pooled-vector candidates that are re-ranked by the exact score."""
    pictures: bool = True
    """Whether thumbnails are kept, for the report and the viewer."""
    thumbnail_px: Annotated[int, Field(ge=32)] = 256
    """Longer side of a thumbnail, pixels."""
    shard_rows: Annotated[int, Field(gt=0)] = 1024
    """Films, or sentences, in one shard: the unit that is resumed."""
    batch: Annotated[int, Field(gt=0)] = 32
    """Films, or sentences, in one forward pass."""


class ReportConfig(Section):
    """The HTML report (`write_report`)."""

    private: bool = False
    """Leave out every text and picture."""
    examples: Annotated[int, Field(ge=0)] = 6
    """Films, heatmaps and retrieved cases shown."""
