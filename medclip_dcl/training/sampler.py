"""Which pairs make up each global batch: a pure function of the seed and the step.

Axes
    studies  usable training studies
    batch    places in the global batch, over all processes

An epoch is a permutation of the studies, cut into global batches; studies that do
not fill the last one are left out of that epoch. So a study stands at most once in a
batch (twice, it would be a certain false negative) and at most once in an epoch, and
what a batch holds does not depend on the number of processes.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from medclip_dcl.errors import ConfigError
from medclip_dcl.rng import RngStream, generator_for


class RaggedIndex:
    """Members of each study, such as its images: ragged rows in two flat arrays.

    Args:
        owners: study of each member, from 0.
        count: number of studies; every one has a member.
    """

    def __init__(self, owners: Int64[np.ndarray, " members"], count: int) -> None:
        self.sizes = np.bincount(owners, minlength=count).astype(np.int64)
        assert len(self.sizes) == count, "a member belongs to no study"
        assert not count or self.sizes.min() > 0, "a study has no member"
        self._members = np.argsort(owners, kind="stable").astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    def pick(
        self, studies: Int64[np.ndarray, " batch"], uniform: Float64[np.ndarray, " batch"]
    ) -> Int64[np.ndarray, " batch"]:
        """Pick one member of each study.

        Args:
            studies: the studies.
            uniform: a number in [0, 1) for each; equal parts of it mean equal members.

        Returns:
            The members.
        """
        index = (uniform * self.sizes[studies]).astype(np.int64)
        members: np.ndarray = self._members[self._starts[studies] + index]
        return members


@dataclass(frozen=True)
class BatchRows:
    """One global batch; each array has one entry per place."""

    studies: Int64[np.ndarray, " batch"]
    """Study whose image is shown; all differ."""
    reports: Int64[np.ndarray, " batch"]
    """Study whose report is read: the same, but in the shuffled control."""
    images: Int64[np.ndarray, " batch"]
    """Image, as a member of the images' `RaggedIndex`."""
    sentences: Int64[np.ndarray, " batch"]
    """Sentence, as a member of the sentences' `RaggedIndex`."""


class EpochOrder:
    """Cuts random orders of all items into global batches.

    Args:
        items: number of items.
        global_batch: items in a batch, over all processes; at most all items.
        seed: the config's seed.

    Attributes:
        steps_per_epoch: full global batches in one pass over the items.
    """

    def __init__(self, items: int, global_batch: int, seed: int) -> None:
        self._items, self._global_batch, self._seed = items, global_batch, seed
        self.steps_per_epoch = items // global_batch
        self._kept = (-1, np.arange(items, dtype=np.int64))  # one store, so threads may share

    def draw(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Draw the global batch of a step.

        Args:
            step: the step, from 0.

        Returns:
            Items, each at most once, and at most once in an epoch.
        """
        epoch, turn = divmod(step, self.steps_per_epoch)
        start = turn * self._global_batch
        return self._order_of(epoch)[start : start + self._global_batch]

    def _order_of(self, epoch: int) -> Int64[np.ndarray, " items"]:
        kept, order = self._kept
        if kept != epoch:
            order = generator_for(self._seed, RngStream.ORDER, epoch).permutation(self._items)
            self._kept = (epoch, order)
        return order


class ImageTextSampler:
    """Draws the global batch of any step.

    Args:
        images: images of each study.
        sentences: usable sentences of each study.
        global_batch: pairs in a batch, over all processes.
        seed: the config's seed.
        shuffle_reports: pair every image with the report of another study.

    Raises:
        ConfigError: there are fewer studies than places.
    """

    def __init__(
        self,
        images: RaggedIndex,
        sentences: RaggedIndex,
        global_batch: int,
        seed: int,
        shuffle_reports: bool,
    ) -> None:
        assert len(images) == len(sentences)
        if len(images) < global_batch:
            raise ConfigError(
                f"train.global_batch {global_batch} exceeds the {len(images)} studies that have an "
                "image and a usable sentence; a batch holds a study once: lower it or add studies"
            )
        self._images, self._sentences = images, sentences
        self._global_batch, self._seed = global_batch, seed
        self._report_of = np.arange(len(images), dtype=np.int64)
        if shuffle_reports:
            self._report_of = _derangement(len(images), seed)
        self._order = EpochOrder(len(images), global_batch, seed)

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches in one pass over the studies."""
        return self._order.steps_per_epoch

    def draw(self, step: int) -> BatchRows:
        """Draw the global batch of a step.

        Args:
            step: the step, from 0.

        Returns:
            The batch. Each study's image and sentence are drawn uniformly and independently.
        """
        studies = self._order.draw(step)
        reports = self._report_of[studies]
        uniform = generator_for(self._seed, RngStream.CHOICE, step).random((2, self._global_batch))
        return BatchRows(
            studies=studies,
            reports=reports,
            images=self._images.pick(studies, uniform[0]),
            sentences=self._sentences.pick(reports, uniform[1]),
        )


def _derangement(count: int, seed: int) -> Int64[np.ndarray, " studies"]:
    """Give each study another one's report: a random cycle through all studies."""
    cycle = generator_for(seed, RngStream.PAIRING).permutation(count)
    report_of = np.empty(count, dtype=np.int64)
    report_of[cycle] = np.roll(cycle, -1)
    return report_of
