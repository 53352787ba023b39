"""Films, sentences, eta and evidence -> the batch of any step.

Axes
    batch  places in the global batch, over all processes
    local  places of this process: a slice of the batch

Only films and word pieces are cut to this process's share. Everything small is kept for
the whole batch: it is a function of the step, so nothing of it needs to be gathered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8, UInt8
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from medclip_dcl.artifacts.prepared import PreparedImages
from medclip_dcl.config.training import TrainConfig
from medclip_dcl.training.augment import Views, centre_views, cut, draw_views, slack_px
from medclip_dcl.training.corpus import Corpus
from medclip_dcl.training.draws import Stream, generator_for
from medclip_dcl.training.evidence import Evidence
from medclip_dcl.training.sampler import PairSampler


@dataclass(frozen=True)
class PairBatch:
    """What a process needs for one step."""

    step: int
    mine: slice
    """This process's places in the global batch."""
    study_ids: tuple[str, ...]
    """Study of each place, for messages."""
    crops: UInt8[Tensor, "local 1 input_px input_px"]
    """Crops of the films, 0 black to 255 white."""
    brightness: Float[Tensor, " local"]
    contrast: Float[Tensor, " local"]
    input_ids: Int[Tensor, "local tokens"]
    """Word pieces, padded to the longest sentence of these."""
    attention_mask: Int[Tensor, "local tokens"]
    eta: Float[Tensor, " batch"]
    """Class probability of each sentence."""
    sentence_codes: Int8[Tensor, "batch codes"] | None
    """Claims of each sentence."""
    report_codes: Int8[Tensor, "batch codes"] | None
    """Claims of each report."""
    labels: Bool[Tensor, "batch findings"] | None
    """Findings that each report's labels call present."""

    @property
    def item_ids(self) -> tuple[str, ...]:
        """Study of each place."""
        return self.study_ids

    def to(self, device: torch.device) -> "PairBatch":
        """Move the tensors.

        Args:
            device: where to.

        Returns:
            The batch there.
        """
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


class TokenTable:
    """Word pieces of every distinct text, cut once.

    Args:
        tokenizer: cuts them.
        texts: distinct texts.
        max_tokens: longest encoding; longer ones are truncated.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int
    ) -> None:
        rows = (
            tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
            if texts
            else []
        )
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._flat = np.fromiter(
            (piece for row in rows for piece in row), dtype=np.int32, count=int(lengths.sum())
        )
        self._padding = int(tokenizer.pad_token_id)

    def padded(
        self, texts: Int[np.ndarray, " local"]
    ) -> tuple[Int[Tensor, "local tokens"], Int[Tensor, "local tokens"]]:
        """Give the word pieces of some texts, padded to the longest of them.

        Args:
            texts: numbers of the texts.

        Returns:
            Ids, and 1 for real tokens, 0 for padding.
        """
        starts, ends = self._starts[texts], self._starts[texts + 1]
        width = int((ends - starts).max())
        place = starts[:, None] + np.arange(width)
        real = place < ends[:, None]
        ids = np.where(real, self._flat[np.where(real, place, 0)], self._padding)
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(real.astype(np.int64))


class Pairs:
    """Makes the batch of any step, by whichever thread asks.

    Args:
        corpus: the studies.
        evidence: what is known about them.
        prepared: their films.
        tokens: word pieces of the corpus's texts.
        sampler: draws the batches.
        settings: batch size and augmentation.
        input_px: height and width of the crops, pixels.
        seed: seed of the augmentation; None: every film is seen in the middle, as it is.
        mine: this process's places in the global batch.

    Raises:
        ConfigError: the crops are larger than the films.
    """

    def __init__(
        self,
        corpus: Corpus,
        evidence: Evidence,
        prepared: PreparedImages,
        tokens: TokenTable,
        sampler: PairSampler,
        settings: TrainConfig,
        input_px: int,
        seed: int | None,
        mine: slice,
    ) -> None:
        self._corpus, self._evidence, self._prepared = corpus, evidence, prepared
        self._tokens, self._sampler, self._settings = tokens, sampler, settings
        self._input_px, self._seed, self._mine = input_px, seed, mine
        self._slack = slack_px(prepared.size_px, input_px)
        self._eta = torch.from_numpy(corpus.eta)

    def batch(self, step: int) -> PairBatch:
        """Make the batch of a step.

        Args:
            step: the step, from 0.

        Returns:
            The batch; a function of the step alone.
        """
        draw = self._sampler.draw(step)
        texts = self._corpus.text_of[draw.sentences]
        views = self._views(step).at(self._mine)
        ids, mask = self._tokens.padded(texts[self._mine])
        return PairBatch(
            step=step,
            mine=self._mine,
            study_ids=tuple(self._corpus.study_ids[study] for study in draw.studies),
            crops=self._crops(self._corpus.film_rows[draw.films[self._mine]], views),
            brightness=torch.from_numpy(views.brightness),
            contrast=torch.from_numpy(views.contrast),
            input_ids=ids,
            attention_mask=mask,
            eta=self._eta[texts],
            sentence_codes=_rows(self._evidence.sentence_codes, texts),
            report_codes=_rows(self._evidence.report_codes, draw.reports),
            labels=_rows(self._evidence.labels, draw.reports),
        )

    def _views(self, step: int) -> Views:
        films = self._settings.global_batch
        if self._seed is None:
            return centre_views(films, self._slack)
        generator = generator_for(self._seed, Stream.VIEW, step)
        return draw_views(
            generator, films, self._slack, self._settings.brightness, self._settings.contrast
        )

    def _crops(
        self, rows: Int[np.ndarray, " local"], views: Views
    ) -> UInt8[Tensor, "local 1 input_px input_px"]:
        crops = np.empty((len(rows), 1, self._input_px, self._input_px), dtype=np.uint8)
        for place, row in enumerate(rows.tolist()):
            film = self._prepared.pixels(row)
            cut(film, int(views.top[place]), int(views.left[place]), crops[place, 0])
        return torch.from_numpy(crops)


def _rows(table: Tensor | None, rows: Int[np.ndarray, " batch"]) -> Tensor | None:
    return None if table is None else table[torch.from_numpy(rows)]
