"""Settings of the training loop and of its objective."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from medclip_dcl.core.plugins import LOSSES
from medclip_dcl.core.settings import NO_EFFECT, Section

Tracker = Literal[  # trackers by the names that Accelerate gives them
    "tensorboard", "wandb", "mlflow", "trackio", "comet_ml", "aim", "clearml", "dvclive", "swanlab"
]

BestMetric = Literal[  # figures that may choose the published step
    "", "validation_loss", "validation_uncorrected_loss", "validation_auc", "validation_report_auc"
]


def lower_is_better(metric: str) -> bool:
    """Whether the best value of a validation metric is the lowest, as of a loss."""
    return metric.endswith("loss")


class TrainConfig(Section):
    """The Accelerate loop (`train`)."""

    global_batch: Annotated[int, Field(gt=1)] = 64
    """Image-text pairs in one contrastive batch, over all processes; paper: 64."""
    steps: Annotated[int, Field(gt=0)] | None = 100_000
    """Optimiser steps; null where `epochs` says how long."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the training studies, in place of `steps`; those that do not fill the last global
    batch of a pass are left out of it."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """Peak AdamW learning rate; paper: 1e-5."""
    text_learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Peak learning rate of the text encoder; None: `learning_rate`."""
    frozen: tuple[Literal["image", "text"], ...] = ()
    """Encoders that stay as they are, norms and dropout as in use; the maps behind them learn. To
    thaw them later, train a second run with `model.pretrained` the package of the first."""
    warmup_steps: Annotated[int, Field(ge=0)] = 2000
    """Linear warm-up before cosine decay; paper: 2000."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW weight decay; none for biases, norms and gamma, nor for the class token and the
    positions of a vision transformer."""
    freeze_batchnorm: bool = False
    """Whether batch norms keep the statistics that they were loaded with."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Autocast of the encoders; similarity and loss are always float32. `bf16` is for machines that
    multiply in it."""
    chunk: Annotated[int, Field(ge=0)] = 0
    """Pairs that a process encodes at once; 0: all of its own. A batch of any size then takes the
    memory of a chunk and a third more time, with the same gradients: batch norms must be frozen,
    and dropout is drawn chunk by chunk."""
    processes: Annotated[int, Field(ge=1), NO_EFFECT] = 1
    """Processes that the run expects; another world size is refused. A run that was stopped goes on
    with the same number bit for bit. It may go on with another: batches stay the same, dropout,
    rounding and, on CPUs, the statistics of batch norms do not, which the run reports and the model
    records as `resumed_with`."""
    save_every_steps: Annotated[int, Field(gt=0), NO_EFFECT] = 1000
    """Steps between checkpoints, of `pretrain_images` too: what a kill can lose."""
    validate_every_steps: Annotated[int, Field(ge=0), NO_EFFECT] = 0
    """Steps between validation losses; 0: none. A validation split of fewer studies than
    `global_batch` is one batch, whose loss has fewer negatives than that of training."""
    validate_images: Annotated[int, Field(ge=0), NO_EFFECT] = 0
    """Most images of the validation split that are asked for findings at each validation; 0:
    none."""
    best_metric: BestMetric = ""
    """Validation metric that chooses the published step; empty: the last step, or what the
    `judge` of a sweep's grid names."""
    trackers: Annotated[tuple[Tracker, ...], NO_EFFECT] = ()
    """Trackers that get the metrics besides the log, by Accelerate's names; `tensorboard` writes
    to `trackers/` in the config's folder, most others send metrics to another machine."""
    shuffle_reports: bool = False
    """Control: pair every image with the report of another study."""

    @property
    def total_steps(self) -> int:
        """Steps of a run; where `epochs` is set, of settings that `counted` gave."""
        assert self.steps is not None, "epochs are turned into steps by `counted`"
        return self.steps

    def counted(self, steps_per_epoch: int) -> Self:
        """Return the same settings with steps in place of epochs; at least one."""
        if self.epochs is None:
            return self
        steps = max(1, round(self.epochs * steps_per_epoch))
        return self.model_copy(update={"steps": steps, "epochs": None})

    def result_settings(self, *also: str) -> dict[str, Any]:
        """Return the settings that decide the model; validation's where it chooses the step."""
        validation = ("validate_every_steps", "validate_images") if self.best_metric else ()
        return super().result_settings(*validation, *also)

    @model_validator(mode="before")
    @classmethod
    def _epochs_replace_the_default(cls, tree: Any) -> Any:
        # A default of `steps` must not contradict epochs that are set alone.
        if isinstance(tree, dict) and tree.get("epochs") is not None:
            return {"steps": None, **tree}
        return tree

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"steps is {self.steps} and epochs is {self.epochs}; give one of them, and null "
                "for the other where a base sets it"
            )
        if self.global_batch % self.processes:
            raise ValueError(
                f"global_batch {self.global_batch} is not a multiple of processes {self.processes}"
            )
        if self.best_metric and not self.validate_every_steps:
            raise ValueError(f"best_metric {self.best_metric} needs validate_every_steps")
        # Losses are of batches; the others ask images.
        asks = self.best_metric not in {"", "validation_loss", "validation_uncorrected_loss"}
        if asks and not self.validate_images:
            raise ValueError(f"best_metric {self.best_metric} needs validate_images")
        return self


class PretrainConfig(Section):
    """Weights of the image encoder, learned from the training images alone (`pretrain_images`)."""

    steps: Annotated[int, Field(gt=0)] = 2000
    """Optimiser steps."""


class ObjectiveConfig(Section):
    """The loss, and what it knows about negatives."""

    kind: Annotated[str, AfterValidator(LOSSES.check)] = "debiased"
    """`infonce`, `debiased` or `multipositive`, or a loss of a plugin. `debiased` with
    `eta.source: pll` is the paper's."""
    directions: Literal["t2i", "i2t", "both"] = "t2i"
    """Anchors: texts (the paper), images, or both."""
    image_anchor: Literal["own", "same"] = "own"
    """Loss of image anchors next to text anchors (`directions: both`): InfoNCE of an image on its
    `own` sentence, or the `same` loss as that of texts."""
    floor: Literal["floor", "zero", "fallback"] = "floor"
    """What stands in for Eq. 8 where it falls to its minimum; `floor` is the paper's."""
    negatives: Literal[
        "all", "remove_labels", "remove_similar", "resample_similar", "reweight_similar"
    ] = "all"
    """Weights on negatives: the rivals of the paper's Table 1."""
    remove_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the negatives that `remove_similar` (the closest pairs of texts, by a threshold that
    is measured on the training sentences) or `resample_similar` leaves out. To tune."""
    beta: Annotated[float, Field(ge=0)] = 5.0
    """Sharpness on the cosine of two texts, of `resample_similar` and `reweight_similar`. 5 leaves
    about 20 effective negatives of 63; 1: 53, 20: 5. To tune, by `effective_negatives` of the
    log."""
    relation: Literal["none", "claims", "labels"] = "none"
    """Source of the relation matrix, which `multipositive` needs. `debiased` takes images that say
    the same out of the negatives, and lowers eta by them; it leaves unclear ones out."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind == "multipositive" and self.relation == "none":
            raise ValueError("multipositive needs a relation: claims or labels")
        if self.kind == "infonce" and self.relation != "none":
            raise ValueError("infonce knows no relation; set relation to none")
        if self.kind == "multipositive" and self.negatives != "all":
            raise ValueError("multipositive takes no weights on negatives; set negatives to all")
        return self
