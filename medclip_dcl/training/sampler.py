"""Which pairs make up each global batch: a pure function of the seed and the step.

Axes
    studies  usable training studies
    batch    slots of the global batch, over all processes

An epoch is a permutation of the studies, cut into global batches; studies that do
not fill the last one are left out of that epoch. So a study stands at most once in a
batch (twice, it would be a certain false negative) and at most once in an epoch, and
what a batch holds does not depend on the number of processes.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.rng import RngStream, generator_for


class RaggedIndex:
    """Members of each study, such as its images: ragged rows in flat arrays.

    `owners` is the study of each member; each of the `count` studies has one at least.
    """

    def __init__(self, owners: Int64[np.ndarray, " members"], count: int) -> None:
        sizes = np.bincount(owners, minlength=count).astype(np.int64)
        assert len(sizes) == count, "a member belongs to no study"
        assert not count or sizes.min() > 0, "a study has no member"
        self.sizes = sizes
        self._starts = np.cumsum(sizes) - sizes
        # Stable: members of a study stay in the order of their table.
        self._members = np.argsort(owners, kind="stable").astype(np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    def pick(
        self, studies: Int64[np.ndarray, " batch"], uniform: Float64[np.ndarray, " batch"]
    ) -> Int64[np.ndarray, " batch"]:
        """Pick one member of each study by a number in [0, 1), equal parts of it a member each."""
        index = (uniform * self.sizes[studies]).astype(np.int64)
        picked: np.ndarray = self._members[self._starts[studies] + index]
        return picked


@dataclass(frozen=True)
class BatchRows:
    """One global batch; each array has one entry per slot."""

    studies: Int64[np.ndarray, " batch"]  # study whose image is shown; all differ
    reports: Int64[np.ndarray, " batch"]
    """Study whose report is read: the same, but in the shuffled control."""
    images: Int64[np.ndarray, " batch"]  # image, as a member of the images' `RaggedIndex`
    sentences: Int64[np.ndarray, " batch"]  # sentence, as a member of the sentences' `RaggedIndex`


class ImageTextSampler:
    """Draws the global batch of any step; ConfigError where there are fewer studies than slots.

    `steps_per_epoch` counts the full global batches in one pass over the studies.
    """

    def __init__(
        self,
        images: RaggedIndex,
        sentences: RaggedIndex,
        global_batch: int,
        seed: int,
        shuffle_reports: bool,
    ) -> None:
        studies = len(images)
        assert studies == len(sentences)
        if studies < global_batch:
            raise ConfigError(
                f"train.global_batch {global_batch} exceeds the {studies} training studies that "
                "have an image and a usable sentence; a batch holds a study once: lower it or add "
                "studies"
            )
        self._images, self._sentences = images, sentences
        self._global_batch, self._seed = global_batch, seed
        self.steps_per_epoch = studies // global_batch
        self._report_of = np.arange(studies, dtype=np.int64)
        if shuffle_reports:
            # A random cycle through all studies: no image keeps its own report.
            cycle = generator_for(seed, RngStream.PAIRING).permutation(studies)
            self._report_of[cycle] = np.roll(cycle, -1)
        # Number and order; one store, so threads may share.
        self._epoch: tuple[int, np.ndarray] = (-1, self._report_of)

    def draw(self, step: int) -> BatchRows:
        """Draw a step's batch; each study's image and sentence uniformly and independently."""
        epoch, turn = divmod(step, self.steps_per_epoch)
        start = turn * self._global_batch
        studies = self._order_of(epoch)[start : start + self._global_batch]
        reports = self._report_of[studies]
        # Two numbers a slot: image and sentence are drawn independently.
        uniform = generator_for(self._seed, RngStream.CHOICE, step).random((2, self._global_batch))
        return BatchRows(
            studies=studies,
            reports=reports,
            images=self._images.pick(studies, uniform[0]),
            sentences=self._sentences.pick(reports, uniform[1]),
        )

    def _order_of(self, epoch: int) -> Int64[np.ndarray, " studies"]:
        number, order = self._epoch
        if number != epoch:
            order = generator_for(self._seed, RngStream.ORDER, epoch).permutation(len(self._images))
            self._epoch = (epoch, order)
        return order
