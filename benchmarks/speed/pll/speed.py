"""CPU time of ours and of the peers, interleaved, on one thread; what bfloat16 gains and costs.

The floor is the least time that exact scores take: multiplications that no sharing avoids, at the
best rate. Everything that copies of a sentence have in common is counted once, and everything that
nobody asks for not at all; adding, normalising and looking up cost nothing here.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from benchmarks.speed.pll.models import SIZES, draw, random_bert, tokenizer, with_repeats
from benchmarks.speed.pll.peers import Minicons, masked_row_head
from benchmarks.speed.timing import Times, cpu_ms, interleaved
from medclip_dcl.likelihood.engines import CPU_BUDGET, prepare_engine
from medclip_dcl.likelihood.eta import cap_eta, eta_from_pll
from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.likelihood.pll import encode_sentences, score_encodings
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_reporting.diagnostics import spearman

ROWS = 512


def operations(config: BertConfig, pieces: int) -> float:
    """Count the floating point operations of the matrix products for one sentence.

    The input has two pieces more than are scored.
    """
    d, f, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    n, length, layers = pieces, pieces + 2, config.num_hidden_layers
    after_attention = d * d + 2 * d * f
    attention = 2 * length * d  # of one place: logits and sums
    first = 3 * d * d * (length + n) + n * length * (attention + after_attention)
    inner = n * length * (3 * d * d + attention + after_attention)
    last = n * (3 * d * d + 2 * length * heads * d + after_attention)
    head = n * (d * d + d * config.vocab_size)
    return 2.0 * (first + (layers - 2) * inner + last + head)


def kernels(width: int) -> dict[str, Callable[[], float]]:
    """Make the matrix products whose rate bounds everyone, at the model's width.

    Each multiplies for about 20 ms and returns operations per CPU second.
    """
    rates: dict[str, Callable[[], float]] = {}
    for inputs, outputs in ((width, width), (width, 4 * width), (4 * width, width)):
        x, weight, bias = (
            torch.randn(ROWS, inputs),
            torch.randn(outputs, inputs),
            torch.randn(outputs),
        )
        work = 2.0 * ROWS * inputs * outputs
        shape = f"{ROWS} x {inputs} x {outputs}"
        rates[f"torch {shape}"] = _rate(partial(F.linear, x, weight, bias), work)
        rates[f"onnxruntime {shape}"] = _rate(_onnx_product(x, weight, bias), work)
    return rates


def _rate(product: Callable[[], Any], work: float) -> Callable[[], float]:
    repeats = max(1, int(2e9 / work))

    def measure() -> float:
        product()
        start = time.process_time()
        for _ in range(repeats):
            product()
        return repeats * work / (time.process_time() - start)

    return measure


def _onnx_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Callable[[], Any]:
    """The same product with its weight packed beforehand, its output buffer bound."""
    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    helper, real = import_module("onnx.helper"), onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        "product",
        [helper.make_tensor_value_info("x", real, list(x.shape))],
        [helper.make_tensor_value_info("y", real, [len(x), len(weight)])],
        [onnx.numpy_helper.from_array(t.numpy(), n) for t, n in ((weight, "w"), (bias, "b"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", runtime.OrtValue.ortvalue_from_numpy(x.numpy()))
    result = runtime.OrtValue.ortvalue_from_numpy(np.zeros((len(x), len(weight)), np.float32))
    binding.bind_ortvalue_output("y", result)
    return lambda: session.run_with_iobinding(binding)


Floats = NDArray[np.float64]

OURS, PLAIN = "ours", "ours, plain engine"
MINICONS, BATCHED, PORT = "minicons, batch 1", "minicons, batch 8", "masked-row head (port)"


@dataclass(frozen=True)
class Rounds:
    """CPU seconds of every contestant, round by round."""

    times: Times
    gflop: float
    best_gflops: float
    torch_gflops: float
    apart: float
    """Largest difference of a score from minicons', nats."""
    prepare_s: float

    def ratio(self, baseline: str, ours: str = OURS) -> float:
        """Divide medians: how many times the baseline's CPU time ours goes into."""
        return cpu_ms(self.times, baseline) / cpu_ms(self.times, ours)

    @property
    def over_floor(self) -> float:
        """Our CPU time over the least possible one."""
        return cpu_ms(self.times, OURS) / 1e3 * self.best_gflops / self.gflop

    @property
    def reachable(self) -> float:
        """CPU time of minicons over the least possible one: the most that anyone can reach."""
        return cpu_ms(self.times, MINICONS) / 1e3 * self.best_gflops / self.gflop


def compare(size: str, sentences: int, rounds: int, *, repeats: bool, peers: bool) -> Rounds:
    """Time all on the same rows, after one round to warm up.

    `repeats`: 60 % of the rows are repeats. `peers`: the slower variants run too, minicons in
    batches and our plain engine.
    """
    model, words = random_bert(SIZES[size]), tokenizer()
    distinct = draw(sentences, seed=11)
    texts = with_repeats(distinct, seed=12) if repeats else distinct
    encodings = encode_sentences(words, texts)
    mask_id = int(words.mask_token_id)
    start = time.process_time()
    engine = prepare_engine(model, "onnxruntime", 1)
    prepare_s = time.process_time() - start
    minicons = Minicons(model, words)

    def ours() -> Floats:
        fast = score_encodings(model, encodings, mask_id, "original", CPU_BUDGET, None, engine)
        return fast.numpy()

    def plain() -> Floats:
        return score_encodings(model, encodings, mask_id, "original", CPU_BUDGET).numpy()

    contestants: dict[str, Callable[[], Floats]] = {
        MINICONS: lambda: minicons.score(texts, 1),
        PORT: lambda: masked_row_head(model, encodings, mask_id),
        OURS: ours,
    }
    if peers:
        contestants |= {BATCHED: lambda: minicons.score(texts, 8), PLAIN: plain}
    products = kernels(model.config.hidden_size)
    scores: dict[str, Floats] = {}
    rates: dict[str, list[float]] = {name: [] for name in products}

    def scored(name: str) -> Callable[[int], None]:
        return lambda _: scores.update({name: contestants[name]()})

    def rated(name: str) -> Callable[[int], None]:
        return lambda _: rates[name].append(products[name]())

    turns = {name: scored(name) for name in contestants} | {name: rated(name) for name in products}
    times = interleaved(turns, rounds, warm_up=1)
    # by the best round: a floor must not be lifted by a busy machine
    best = {name: max(measured) / 1e9 for name, measured in rates.items()}
    apart = max(float(np.abs(got - scores[MINICONS]).max()) for got in scores.values())
    return Rounds(
        {name: times[name] for name in contestants},
        sum(operations(model.config, item.tokens) for item in set(encodings)) / 1e9,
        max(best.values()),
        max(rate for name, rate in best.items() if name.startswith("torch")),
        apart,
        prepare_s,
    )


def show(title: str, rounds: Rounds) -> None:
    """Print the times as a table."""
    print(title)
    for name in rounds.times:
        print(
            f"    {name:24} {cpu_ms(rounds.times, name) / 1e3:8.3f} s CPU   minicons / it "
            f"{rounds.ratio(MINICONS, name):6.2f}   port / it {rounds.ratio(PORT, name):6.2f}"
        )
    least = rounds.gflop / rounds.best_gflops
    print(
        f"    {'floor':24} {least:8.3f} s CPU   minicons / it {rounds.reachable:6.2f}   "
        f"port / it {cpu_ms(rounds.times, PORT) / 1e3 / least:6.2f}   "
        f"({rounds.gflop:.1f} GFLOP at {rounds.best_gflops:.0f} GFLOP/s; "
        f"torch alone {rounds.torch_gflops:.0f})"
    )
    print(
        f"    ours over floor {rounds.over_floor:.2f}; prepared in {rounds.prepare_s:.2f} s; "
        f"scores at most {rounds.apart:.1e} nats from minicons'",
        flush=True,
    )


def compare_bfloat16(sentences: int, rounds: int) -> dict[str, float]:
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
