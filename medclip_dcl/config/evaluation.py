"""Settings of evaluation, retrieval index and report."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.config.model import SimilarityConfig
from medclip_dcl.config.people import PeopleConfig
from medclip_dcl.config.section import Section


class AdapterConfig(Section):
    """Other people's model, put to the same questions (`evaluate`)."""

    model: str = ""
    """`module:callable` that builds it; empty: the recipe's own model. The module's code runs
    as it is: name what you trust."""
    weights: str = ""
    """File or folder that the callable is given, and that names the model in the results."""
    similarity: SimilarityConfig = SimilarityConfig(kind="global")
    """How its regions and a sentence become one score."""
    gamma_squared: Annotated[float, Field(gt=0)] = 100.0
    """Scale of its scores in a softmax; CLIP's largest logit scale is 100."""


class EvaluateConfig(Section):
    """Questions put to a trained model (`evaluate`)."""

    split: Literal["validate", "test"] = "test"
    """Split that is evaluated."""
    prompts: str = "configs/prompts/chex5.yaml"
    """Prompt pairs: a finding, its positive and its negative prompt; several a side are an
    ensemble, their scores averaged, as in `chex5_ensemble.yaml`."""
    paraphrases: str = ""
    """Prompt file whose prompts of a side are paraphrases: every pair is asked by itself, and the
    spread is told; empty: not asked. `configs/prompts/chex5_ensemble.yaml` has some."""
    people: PeopleConfig = PeopleConfig()
    """Groups of films whose figures are told apart."""
    films_per_finding: Annotated[int, Field(ge=0)] = 0
    """Most films of a finding, half of them with it, drawn with the seed; 0: all. Paper: 1000."""
    per_class: Annotated[int, Field(ge=0)] = 200
    """Most films of a class where films show one finding alone (CheXpert5x200); 0: not asked."""
    probe_films: Annotated[int, Field(ge=0)] = 0
    """Most training films for linear probes, drawn with the seed; 0: no probe. `probe` says how."""
    geometry: Literal["paper", "biovil"] = "paper"
    """What the model sees: `paper`, the whole film; `biovil`, a central crop, its heatmaps
    smoothed."""
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
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the films that are drawn and of the resamples; not the recipe's, so that runs of
    several seeds are asked the same."""
    bootstrap: Annotated[int, Field(ge=0)] = 1000
    """Patient-level bootstrap samples for 95 % intervals; 0: none."""
    adapter: AdapterConfig = AdapterConfig()
    """Other people's model."""


class IndexConfig(Section):
    """Retrieval (`build_index`)."""

    splits: tuple[str, ...] = ("train", "validate", "test")
    """Splits whose films and sentences are indexed."""
    candidates: Annotated[int, Field(gt=0)] = 300
    """Candidates that are re-ranked by the exact score. `build_index` says as
    `candidate_recall_at_10` how many of the exact best films they hold; where that is too low, give
    more."""
    anchors: Annotated[int, Field(ge=3)] = 1536
    """Sentences, and boxes for a third, at which the score of every film is sketched to find
    candidates: fewer build faster, more find better candidates."""
    pictures: bool = True
    """Whether thumbnails are kept, for the report and the viewer."""
    thumbnail_px: Annotated[int, Field(ge=32)] = 256
    """Longer side of a thumbnail, pixels."""
    shard_rows: Annotated[int, Field(gt=0)] = 1024
    """Films, or sentences, in one shard: the unit that is resumed. Whoever opens the index
    keeps two files open per shard of films."""
    batch: Annotated[int, Field(gt=0)] = 32
    """Films, or sentences, in one forward pass."""


class RetrievalConfig(Section):
    """Where candidates of a retrieval are searched (`build_index`, the service)."""

    uri: str = ""
    """Empty: in memory, exact; `http://...`: a Milvus cluster; a path that ends in `.db`:
    milvus-lite, for one process."""
    token_file: str = ""
    """File with `user:password` or an API key of the cluster, not readable by others."""
    timeout_s: Annotated[float, Field(gt=0)] = 10
    """Seconds that the cluster may take over one call."""


class ReportConfig(Section):
    """The HTML report (`write_report`)."""

    private: bool = False
    """Leave out every text and picture."""
    examples: Annotated[int, Field(ge=0)] = 6
    """Films, heatmaps and retrieved cases shown."""
