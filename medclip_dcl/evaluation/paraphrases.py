"""Findings asked for in other words: every pairing of their positive and negative prompts."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure, Samples, Weights, estimate
from medclip_dcl.evaluation.classification import ONE_CLASS, SHOWN, Truth, known_images
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.metrics import classification_metrics, value_of
from medclip_dcl.evaluation.prompt_pairs import pair_correlation
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference.prompts import Finding


def evaluate_paraphrases(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Truth,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Ask for findings in every pairing of their positive and negative prompts.

    Of `auc` and `balanced_accuracy` each finding has the `_lowest`, `_highest` and `_spread` over
    the pairs, and the `_ensemble`, all pairs averaged.
    """
    groups: dict[str, dict[str, Figure]] = {}
    pool: dict[str, int] = {}
    rows: Rows = []
    for finding, state in zip(findings, truth, strict=True):
        texts = [*finding.positive, *finding.negative]  # each is scored once
        scored = images.mean_by_study(model.score(images.regions, model.embed_sentences(texts)))
        scores = scored.double().cpu().numpy()
        present, absent = np.split(scores, [len(finding.positive)])
        pairs = list(product(finding.positive, finding.negative or [""]))
        asked = [Finding("", (plus,), (minus,) if minus else ()) for plus, minus in pairs]
        sides = list(product(present, absent))
        if not finding.negative:
            missing = np.array(model.missing_sides(asked))[:, None]
            sides = list(zip(present, missing + 0 * present, strict=True))
        margins = np.stack([one - other for one, other in sides])
        known, positive, owners = known_images(state, images.subject_ids)
        *levels, level = model.offsets_of([*asked, finding])
        measured = [
            (margin[known], positive, offset)
            for margin, offset in zip(margins, levels, strict=True)
        ]
        pool[finding.name] = len(pairs)
        ensemble = (margins.mean(axis=0)[known], positive, level)
        groups[finding.name] = _spread(measured, ensemble, owners, bootstrap)
        for words, side, (margin, _, offset) in zip(pairs, sides, measured, strict=True):
            found = classification_metrics(margin, positive, offset=offset)
            figures = {name: value_of(values) for name, values in found.items()}
            row = {"finding": finding.name, "positive": words[0], "negative": words[1]}
            measures = {name: figures.get(name) for name in SHOWN}
            rows.append(row | measures | {"correlation": pair_correlation(*side)})
    return EvalResult("" if groups else "there is no finding", pool, groups=groups), rows


_Asked = tuple[np.ndarray, np.ndarray, float | None]


def _spread(
    pairs: Sequence[_Asked], ensemble: _Asked, owners: list[str], bootstrap: BootstrapOptions
) -> dict[str, Figure]:
    def measure(weights: Weights) -> dict[str, Samples]:
        def of(asked: _Asked) -> dict[str, Samples]:
            margin, positive, offset = asked
            return classification_metrics(margin, positive, weights, offset)

        every, together = [of(pair) for pair in pairs], of(ensemble)
        found: dict[str, Samples] = {}
        for name in SHOWN:
            if name in together:
                values = np.stack([item[name] for item in every])
                lowest, highest = values.min(axis=0), values.max(axis=0)
                found[f"{name}_lowest"], found[f"{name}_highest"] = lowest, highest
                found[f"{name}_spread"] = highest - lowest
                found[f"{name}_ensemble"] = together[name]
        return found

    return estimate(measure, owners, bootstrap, ONE_CLASS)
