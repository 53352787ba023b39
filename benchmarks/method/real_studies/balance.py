"""An idea: batches in which rare findings are seen more often."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.method.real_studies.variants import with_corpus
from medclip_dcl.rng import RngStream, generator_for
from medclip_dcl.text.labeler.labels import REPORT_CLAIMS
from medclip_dcl.training.sampler import BatchRows, ImageTextSampler
from medclip_dcl.training.setup import TrainInputs, TrainSetup
from medclip_dcl.training.supervision import read_report_labels


class BalancedSampler(ImageTextSampler):
    """Draws every batch by itself, a study by the weight of its rarest finding, and none twice."""

    weights: Float[np.ndarray, " studies"]

    def draw(self, step: int) -> BatchRows:
        """Draw a step's batch; without replacement, so that no study meets itself."""
        rng = generator_for(self._seed, RngStream.ORDER, step)
        chosen = rng.choice(len(self.weights), self._global_batch, replace=False, p=self.weights)
        images, sentences = rng.random((2, self._global_batch))
        return BatchRows(
            studies=chosen,
            reports=chosen,
            images=self._images.pick(chosen, images),
            sentences=self._sentences.pick(chosen, sentences),
        )


def balanced_findings(setup: TrainSetup, inputs: TrainInputs) -> TrainSetup:
    """Draw a study the more often the rarer a finding of its report is."""
    assert inputs.claims is not None, "this row reads claims"
    said = read_report_labels(inputs.claims, REPORT_CLAIMS, "study_id", setup.data.corpus.study_ids)
    weights = rarity([set(each.asserted) for each in said])

    def make(*arguments: Any) -> BalancedSampler:
        sampler = BalancedSampler(*arguments)
        sampler.weights = weights
        return sampler

    return with_corpus(setup, setup.data.corpus, make_sampler=make)


def rarity(findings: Sequence[Collection[str]]) -> Float[np.ndarray, " studies"]:
    """Weigh each study by 1/sqrt(n) of its rarest finding, of which n studies have it; sum 1.

    Studies without a finding are of one kind among them.

    Source: Mahajan et al. 2018, square-root sampling.
    """
    kinds = [list(found) or [""] for found in findings]
    counts = Counter(kind for found in kinds for kind in found)
    weights = np.array([max(counts[kind] ** -0.5 for kind in found) for found in kinds])
    return weights / weights.sum()
