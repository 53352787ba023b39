"""Scores in bfloat16: how much faster than minicons in float32, and how far from float32."""

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertForMaskedLM, BertTokenizer

from benchmarks.speed.pll.models import SIZES, draw, random_bert, tokenizer
from benchmarks.speed.pll.peers import Minicons
from benchmarks.speed.timing import cpu_ms, interleaved
from medclip_dcl.likelihood.diagnostics import spearman
from medclip_dcl.likelihood.engines import CPU_BUDGET, prepare_engine
from medclip_dcl.likelihood.eta import cap_eta, eta_from_pll
from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.likelihood.pll import encode_sentences, score_encodings
from medclip_dcl.likelihood.settings import EtaConfig

Floats = NDArray[np.float64]


def speed(sentences: int, rounds: int) -> dict[str, float]:
    """Time minicons, ours in float32 and ours in bfloat16 on a BERT-base, interleaved.

    Gives ratios, and the CPU seconds that preparing takes.
    """
    exact, words, texts = random_bert(SIZES["base"]), tokenizer(), draw(sentences, seed=11)
    encodings, mask_id = encode_sentences(words, texts), int(words.mask_token_id)
    rough = copy.deepcopy(exact).bfloat16()
    start = time.process_time()
    engines = {model: prepare_engine(model, "auto", 1) for model in (rough, exact)}
    prepared = time.process_time() - start
    minicons = Minicons(exact, words)

    def score(model: BertForMaskedLM) -> None:
        score_encodings(model, encodings, mask_id, "original", CPU_BUDGET, None, engines[model])

    rivals: dict[str, Callable[[int], object]] = {
        "minicons": lambda _: minicons.score(texts, 1),
        "float32": lambda _: score(exact),
        "bfloat16": lambda _: score(rough),
    }
    times = interleaved(rivals, rounds, warm_up=1)
    ours = cpu_ms(times, "bfloat16")
    return {
        "base_bf16_over_minicons": cpu_ms(times, "minicons") / ours,
        "base_bf16_over_float32": cpu_ms(times, "float32") / ours,
        "base_bf16_and_float32_prepare_s": prepared,
    }


def drift_of(
    model: BertForMaskedLM, words: BertTokenizer, texts: Sequence[str]
) -> dict[str, float]:
    """Compare scores in bfloat16 with those in float32, which `model` is in.

    Gives the largest and mean |dPLL|, nats; the same of log eta with the paper's a and k, capped;
    rank correlation; and the standard deviation of the scores, nats.
    """
    encodings, mask_id = encode_sentences(words, texts, 512), int(words.mask_token_id)

    def scored(weights: BertForMaskedLM) -> Floats:
        engine = prepare_engine(weights, "auto", 1)
        return score_encodings(
            weights, encodings, mask_id, "original", CPU_BUDGET, None, engine
        ).numpy()

    exact, rough = scored(model), scored(copy.deepcopy(model).bfloat16())
    apart, of_eta = np.abs(rough - exact), np.abs(_log_eta(rough) - _log_eta(exact))
    return {
        "largest": float(apart.max()),
        "mean": float(apart.mean()),
        "log_eta_largest": float(of_eta.max()),
        "log_eta_mean": float(of_eta.mean()),
        "rank_correlation": spearman(exact, rough),
        "spread": float(exact.std()),
    }


def drift(random_sentences: int, trained: Path | None, sentences: int) -> dict[str, float]:
    """Measure the drift of a BERT-base of random weights, and of a trained model in a folder."""
    words = tokenizer()
    cases = {"base": (random_bert(SIZES["base"]), words, random_sentences)}
    if trained is not None:
        loaded = load_language_model(trained)
        cases["trained"] = (loaded.model, loaded.tokenizer, sentences)
    figures = {}
    for name, (model, own, count) in cases.items():
        got = drift_of(model, own, draw(count, seed=41))
        values = ", ".join(f"{key} {value:.3g}" for key, value in got.items())
        print(f"{name}: bfloat16 against float32, {count} sentences: {values}", flush=True)
        figures |= {f"{name}_bf16_drift_{key}": value for key, value in got.items()}
    return figures


def _log_eta(pll_nats: Floats) -> Floats:
    settings = EtaConfig()
    eta = eta_from_pll(torch.from_numpy(pll_nats), settings.a, settings.k)
    return np.asarray(cap_eta(eta, settings.eta_max).log())
