"""What does the likelihood of a sentence know of how often it is true? On real reports (Open-i).

    python -m benchmarks.real_likelihood [--quick]

The training reports of one fold of `real_studies`; language models of four strengths are fitted to
them. The truth of a sentence is rho: the share of the other training patients of whom it is true by
the experts' labels, where these can tell. Figures are over sentences as often as they are said:

    order      rank correlation with rho: of the likelihood, of the likelihood of a word piece, and
               of what costs no model, how often a sentence is said and how short it is
    error      root mean square of log eta - log min(rho, cap), nats; 0.69: factor 2
    expected   false negatives among 63 other images, 63 * mean eta, next to 63 * mean rho
    blind      of what is said with rho > .3, the share with eta < .01

`paper`: a = .2, k = .35; `fitted`: both fitted to the claims, or to the labels, of the training
reports; `constant`: the one value that fits these labels best. No bar: the table as it falls.
"""

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import yaml
from jaxtyping import Bool
from numpy.typing import NDArray

from benchmarks.method.real_studies.studies import CHEXPERT, Fold, read_folds, read_patients
from benchmarks.record import finish, is_quick
from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.likelihood import eta, masked_lm, scoring
from medclip_dcl.likelihood.eta_fit import Line, best_constant, measure_shares
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.losses.relations import ASSERTED, HEDGED, NEGATED, encode_claims
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import FINDINGS, read_claims
from pipelines.report.diagnostics import compare_with_truth, spearman
from tests.support.processes import options

MODELS = {
    "400 steps": {"steps": 400},
    "1,500 steps": {"steps": 1500},
    "4,000 steps": {"steps": 4000},
    "1,500 steps, four times as many parameters": {"steps": 1500, "hidden_size": 256, "layers": 3},
}
"""Language models; the second is that of `real_studies`."""
QUICK = {"20 steps": {"steps": 20, "vocabulary": 400}}
OTHERS = 63
COMMON, BLIND = 0.3, 0.01
LEAST_SHARE = 1e-3

Floats = NDArray[np.float64]


_KNOWN = [FINDINGS.index(name) for name in CHEXPERT if name in FINDINGS]


def fitting(
    codes: np.ndarray, gold: Sequence[Mapping[str, bool]]
) -> tuple[Bool[np.ndarray, "texts studies"], Bool[np.ndarray, " texts"]]:
    """Say of which studies a sentence is true by the experts' labels, where labels can tell.

    They can of a sentence that claims something, hedges nothing, and names no finding without a
    label.
    """
    shown = np.array(
        [[any(own[name] for name in CHEXPERT[FINDINGS[column]]) for column in _KNOWN]
         for own in gold]
    )  # fmt: skip
    normal = np.array([own["normal"] for own in gold])
    findings, calls_normal = codes[:, :-1], codes[:, -1] != 0
    known = np.zeros(findings.shape[1], dtype=bool)
    known[_KNOWN] = True
    asserted, negated = findings & ASSERTED != 0, findings == NEGATED
    names = (findings != 0).any(axis=1)
    answered = (names | calls_normal) & ~(findings & HEDGED != 0).any(axis=1)
    answered &= ~(findings != 0)[:, ~known].any(axis=1)
    wrong = asserted[:, _KNOWN].astype(int) @ (~shown).T.astype(int)
    wrong += negated[:, _KNOWN].astype(int) @ shown.T.astype(int)
    wrong += ((calls_normal & ~names)[:, None] & ~normal[None, :]).astype(int)
    return wrong == 0, answered


def true_shares(fold: Fold) -> tuple[Floats, NDArray[np.int64], list[str]]:
    """Give rho of every distinct sentence, nan where labels cannot tell, counts, and texts."""
    source = open_artifact(sentences.ARTIFACT.at(fold.folder), sentences.ARTIFACT)
    distinct = sentences.distinct_sentences(source)
    texts = distinct["text"].to_pylist()
    rows = read_table(source.path, sentences.SENTENCES, ["study_id", "split", "text_key"])
    rows = rows.filter(pc.equal(rows["split"], "train"))
    uids = sorted(set(rows["study_id"].to_pylist()))
    place = {uid: number for number, uid in enumerate(uids)}
    codes = encode_claims([read_claims(text) for text in texts]).numpy()
    fits, answered = fitting(codes, [fold.gold_of[uid] for uid in uids])
    row_of = {key: row for row, key in enumerate(distinct["text_key"].to_pylist())}
    said = np.zeros_like(fits)
    for key, uid in zip(rows["text_key"].to_pylist(), rows["study_id"].to_pylist(), strict=True):
        said[row_of[key], place[uid]] = True
    others = np.maximum(1, (~said).sum(axis=1))
    rho = np.where(answered, (fits & ~said).sum(axis=1) / others, np.nan)
    return rho, distinct["count"].to_numpy().astype(np.int64), texts


class Trial:
    """The reports of a fold, and language models fitted to them."""

    def __init__(self, fold: Fold) -> None:
        self._fold, self.work = fold, fold.folder
        fold.write_table()
        tree = fold.config().model_dump(mode="json")
        (self.work / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
        for job in ("build_manifest", "split_sentences", "read_claims"):
            self.run(job)

    def run(self, job: str, *settings: str) -> None:
        """Run a job in this process, its lines on stderr."""
        with contextlib.redirect_stdout(sys.stderr):
            main = importlib.import_module(f"pipelines.{job}").main
            code = main(["--config", str(self.work / "config.yaml"), *options(settings)])
        if code:
            raise RuntimeError(f"{job} ended with exit code {code}")

    def cached(self, *settings: str) -> Floats:
        """Build the eta cache, and give its values."""
        self.run("build_eta_cache", *settings)
        cache = open_artifact(eta.ARTIFACT.at(self.work), eta.ARTIFACT)
        values: Floats = read_table(cache.path, eta.ETA)["eta"].to_numpy()
        return values


def judge_eta(
    values: Floats, rho: Floats, count: NDArray[np.int64], cap: float
) -> dict[str, float]:
    """Hold class probabilities against the true shares, each sentence as often as it is said."""
    known = np.isfinite(rho) & (count > 0)
    positive = known & (rho > LEAST_SHARE) & (values > 0)
    common = known & (rho > COMMON)
    agreement = compare_with_truth(values[positive], rho[positive], count[positive], cap)
    return {
        "error": agreement.log_error,
        "expected": OTHERS * float(np.average(values[known], weights=count[known])),
        "blind": float(np.average(values[common] < BLIND, weights=count[common])),
    }


def order(value: Floats, rho: Floats, count: NDArray[np.int64]) -> float:
    """Rank correlation with the true share, each sentence as often as it is said."""
    known = np.isfinite(rho) & (count > 0)
    return spearman(np.repeat(value[known], count[known]), np.repeat(rho[known], count[known]))


def measure(trial: Trial, fold: Fold, models: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Measure every model, and what costs none: name -> figure."""
    rho, count, texts = true_shares(fold)
    known = np.isfinite(rho) & (count > 0)
    cap = EtaConfig().eta_max
    figures = {
        "sentences said": float(count.sum()),
        "of them, labels can tell": float(count[known].sum() / count.sum()),
        "true false negatives of 63": OTHERS * float(np.average(rho[known], weights=count[known])),
        "said with a share above .3": float(np.average(rho[known] > COMMON, weights=count[known])),
        "order: how often it is said": order(count.astype(float), rho, count),
        "order: how short it is": order(-np.array([len(t) for t in texts], float), rho, count),
    }
    for name, settings in models.items():
        asked = [f"language_model.{key}={value}" for key, value in settings.items()]
        trial.run("fit_language_model", *asked)
        trial.run("score_sentences", *asked)
        fitted = open_artifact(masked_lm.ARTIFACT.at(trial.work), masked_lm.ARTIFACT).summary
        path = open_artifact(scoring.ARTIFACT.at(trial.work), scoring.ARTIFACT).path
        scored = read_table(path, scoring.LIKELIHOODS)
        pll_nats, pieces = scored["pll_nats"].to_numpy(), scored["tokens"].to_numpy()
        figures |= {
            f"{name}: held-out accuracy": fitted["held_out_accuracy"],
            f"{name}: parameters": fitted["parameters"],
            f"{name}: order": order(pll_nats, rho, count),
            f"{name}: order, of a word piece": order(pll_nats / np.maximum(pieces, 1), rho, count),
        }
        etas = {"paper": trial.cached(*asked)}
        etas |= {
            f"fitted to {fit}": trial.cached(*asked, f"eta.fit={fit}")
            for fit in ("claims", "labels")
        }
        for kind, values in etas.items():
            found = judge_eta(values, rho, count, cap)
            figures |= {f"{name}, {kind}: {key}": value for key, value in found.items()}
    source = open_artifact(sentences.ARTIFACT.at(trial.work), sentences.ARTIFACT)
    claimed = open_artifact(labels.ARTIFACT.at(trial.work), labels.ARTIFACT)
    value = Line(best_constant(measure_shares(source, claimed, "claims", None), cap), 0.0)
    constant = judge_eta(np.full(len(rho), value.a), rho, count, cap)
    figures |= {f"constant {value.a:.3f}: {key}": found for key, found in constant.items()}
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, and the JSON line."""
    quick, folder = is_quick(argv), os.environ.get("TEST_DATA")
    if not folder:
        print("TEST_DATA is not set; export the folder that holds openi/", file=sys.stderr)
        return 1
    root = Path(folder) / "openi"
    with tempfile.TemporaryDirectory(prefix="likelihood-") as work:
        fold = read_folds(root, Path(work), read_patients(root))[0]
        figures = measure(Trial(fold), fold, QUICK if quick else MODELS)
    for name, value in figures.items():
        print(f"{name:70}{value:12.3f}")
    return finish("real_likelihood", figures, {})


if __name__ == "__main__":
    sys.exit(main())
