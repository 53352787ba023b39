"""The tasks of the papers, their metrics, and intervals; here the settings of evaluation."""

from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field, model_validator

from medclip_dcl.core.settings import NO_EFFECT, Section
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.source_settings import SourceConfig


class AdapterConfig(Section):
    """A model that was not trained here, evaluated in the same way (`evaluate`)."""

    model: str = ""
    """`module:callable` that builds it, whose code runs as it is: name what you trust; empty: the
    config's own model. Of a public checkpoint `medclip adopt` makes a package, which
    `evaluate.model` names. What is built is scored by the mean region's direction, or as its
    attribute `similarity` says, a `model.similarity.kind`."""
    weights: str = ""
    """File or folder that is handed to it, and that names the model in the results."""


class EvaluateConfig(Section):
    """Evaluation of a trained model (`evaluate`)."""

    model: Annotated[str, NO_EFFECT] = ""
    """Folder of a published model or of the run that trained it, or OWNER/NAME@COMMIT of a hub,
    that is evaluated on this source; empty: the model of this run. `evaluate` then makes what it
    needs of the source by itself: images are prepared as those that the model was trained on, and
    prompts, where none are set, are those that it was published with."""
    prompts: str = "configs/prompts/chex5.yaml"
    """Prompt pairs: a finding, its positive and its negative prompt; several a side are an
    ensemble, their scores averaged, as in `chex5_ensemble.yaml`. Without a negative, the level of
    the positive over the model's bank of images decides. A finding's `code` names it in DICOM
    answers."""
    probe_images: Annotated[int, Field(ge=0)] = 0
    """Most training images for linear probes, drawn at random; 0: no probe. A probe reads the image
    encoder's features before the map into the shared space, averaged over the image, as BioViL,
    GLoRIA and MedCLIP probe."""
    allow_contaminated: bool = False
    """Whether a model is evaluated on patients, or on pictures, that it was trained on."""
    retrieval_pool: Annotated[int, Field(ge=0)] = 1000
    """Images in the pool of image-report retrieval, drawn at random; 0: it is left out."""
    bootstrap: Annotated[int, Field(ge=0)] = 1000
    """Patient-level bootstrap samples for 95 % intervals; 0: none."""
    adapter: AdapterConfig = AdapterConfig()
    """A model that was not trained here."""

    @model_validator(mode="after")
    def _one_model(self) -> "EvaluateConfig":
        if self.model and self.adapter.model:
            raise ValueError("model and adapter.model name two models; leave one out")
        if self.adapter.model and not all(self.adapter.model.partition(":")):
            raise ValueError(
                f"adapter.model is {self.adapter.model!r}; it must read module:callable, or make a "
                "package of the checkpoint: medclip adopt, then evaluate.model"
            )
        return self


@runtime_checkable
class EvaluationConfig(Protocol):
    """Sections of a configuration that an evaluation reads."""

    @property
    def work(self) -> str:
        """Folder of the run, which `${WORK}` means in paths."""

    @property
    def source(self) -> SourceConfig:
        """Source of studies: where the truth of generated ones is, and which images are used."""

    @property
    def images(self) -> ImagesConfig:
        """How images were prepared."""

    @property
    def evaluate(self) -> EvaluateConfig:
        """Questions, and how they are asked."""
