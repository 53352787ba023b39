"""The first minutes on a new accelerator: what it can do, and how near training and scoring come.

    python -m benchmarks.gpu [--quick] [--tiny]

Every case runs in a process of its own, so that a precision or a crash of one leaves the others
alone: a case that cannot run is a line with its reason. `--quick` asks for at most eight minutes.
`--tiny` tries the commands at tiny sizes, on the CPU where there is no GPU, in as many minutes; its
figures are not worth keeping. Else it ends with 1 where there is no GPU.

    device       peak of a matrix product in each precision, bandwidth of a copy
    train        pairs/s of the product's step at 480 px with BERT-base, over the bound that
                 its own count of FLOP sets at the measured peak; memory over its estimate
    processes    torchrun with a process per device: NCCL, synchronized batch norms
    resume       a run cut in half and resumed, its weights against an uncut run's
    likelihood   BERT-base PLL, word pieces/s over the peak, drift from the CPU's float32
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.record import finish

Figures = dict[str, float]
Options = Mapping[str, Any]

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
AUTOCAST = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Precision -> `train.precision`; tf32 is float32 with the shorter products of tensor cores."""
_PIECES = 24  # word pieces of a sentence, about the longest of a batch of report sentences
_DEADLINE_S = 300
_ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    """One process: what is measured, under which name its figures stand, and its options."""

    name: str
    prefix: str
    options: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, or one of them; 0 even where some could not run, 1 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--quick", action="store_true", help="fewer cases, at most eight minutes")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, which need no GPU")
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, default={}, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.case:
        print(json.dumps(CASES[arguments.case](arguments.options)), flush=True)
        return 0
    if not (arguments.tiny or torch.cuda.is_available()):
        print("benchmarks.gpu: PyTorch sees no GPU; --tiny tries the commands", file=sys.stderr)
        return 1
    return _run_all(arguments.quick, on_gpu=not arguments.tiny)


def _run_all(quick: bool, *, on_gpu: bool) -> int:
    peaks = _run(Case("device", "", {"size": 8192 if on_gpu else 256}))
    figures, reasons = dict(peaks[0]), dict(peaks[1])
    for case in _cases(on_gpu, quick):
        found, why = _run(case._replace(options=case.options | {"peaks": peaks[0]}))
        figures |= found
        reasons |= why
    return finish("gpu", figures, {}, kept={"not_run": reasons})


def _cases(on_gpu: bool, quick: bool) -> Iterator[Case]:
    """Most telling first: a machine may be taken away."""
    size = {"px": 480, "batch": 64, "seconds": 4 if quick else 15, "text": "base"}
    if not on_gpu:
        size = {"px": 64, "batch": 4, "seconds": 0.1, "text": "tiny"}
    for encoder in ("resnet18", "resnet50"):
        for precision in ("bf16", "fp32", "tf32", "fp16") if on_gpu else ("fp32", "bf16"):
            options = size | {"encoder": encoder, "precision": precision}
            yield Case("train", f"train {encoder} {precision}", options)
    for precision in ("fp32", "bf16"):
        yield Case("likelihood", f"likelihood {precision}", size | {"precision": precision})
    yield Case("resume", "resume", {})
    processes = torch.cuda.device_count() if on_gpu else 2
    yield Case("processes", f"processes {processes}", {"processes": processes})


def _run(case: Case) -> tuple[Figures, dict[str, str]]:
    """Run a case in a process; its figures, or why there are none."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--case", case.name]
    command += ["--options", json.dumps(case.options)]
    began = time.monotonic()
    title = case.prefix or case.name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired:
        print(f"{title}: stopped after {_DEADLINE_S} s", flush=True)
        return {}, {title: f"stopped after {_DEADLINE_S} s"}
    if done.returncode:
        why = _reason(done.stderr)
        print(f"{title}: not run: {why}", flush=True)
        return {}, {title: why}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    for name, value in found.items():
        print(f"{title:32} {name:32} {value:12.4g}", flush=True)
    print(f"{title:32} {'(wall seconds)':32} {time.monotonic() - began:12.1f}", flush=True)
    return {f"{case.prefix} {name}".strip(): value for name, value in found.items()}, {}


# ---- Cases ----------------------------------------------------------------------------------


def measure_device(options: Options) -> Figures:
    """TFLOP/s of a square matrix product in each precision, and GB/s of a copy on the device."""
    device, size = _device(), options["size"]
    figures = {}
    for name, dtype in DTYPES.items():
        if device.type == "cpu" and name in {"tf32", "fp16"}:
            continue
        with _tensor_cores(name == "tf32"):
            left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
            seconds = _median_seconds(lambda a=left, b=right: a @ b, 10)
        figures[f"{name}_tflops"] = 2 * size**3 / seconds / 1e12
    source = torch.empty(2**28 if device.type == "cuda" else 2**22, device=device)
    target = torch.empty_like(source)
    seconds = _median_seconds(lambda: target.copy_(source), 10)
    figures["copy_gb_per_s"] = 2 * source.nbytes / seconds / 1e9
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        figures["memory_gib"] = properties.total_memory / 2**30
        figures["multiprocessors"] = properties.multi_processor_count
    return figures


def measure_training(options: Options) -> Figures:
    """Pairs/s of the product's own training step on random images."""
    from pipelines.config import Config
    from pipelines.plan import measure_step

    precision = options["precision"]
    config = Config.model_validate(
        {
            "work": "runs/gpu",
            "model": {"image": {"kind": options["encoder"], "input_px": options["px"]}},
            "train": {"global_batch": options["batch"], "precision": AUTOCAST[precision]},
        }
    )
    text = _text_config(options["text"])
    with _tensor_cores(precision == "tf32"):
        cost = measure_step(config, text, options["seconds"])
    pairs_per_s = cost.images_per_s or 0.0
    flop = _flop_per_pair(config, text, options["px"])
    bound = options["peaks"][f"{precision}_tflops"] * 1e12 / flop
    figures = {
        "pairs_per_s": pairs_per_s,
        "pairs": options["batch"],
        "gflop_per_pair": flop / 1e9,
        "over_flop_bound": pairs_per_s / bound,
    }
    if _device().type == "cuda":
        peak, estimate = torch.cuda.max_memory_allocated(), cost.memory
        figures |= {"peak_gib": peak / 2**30, "peak_over_estimate": peak / estimate}
    return figures


def _flop_per_pair(config: Any, text: Any, px: int) -> float:
    """FLOP of forward and backward pass of one image and one sentence, counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    from medclip_dcl.models.dual_encoder import build_dual_encoder
    from medclip_dcl.models.image_encoder import CHANNELS

    encoder = build_dual_encoder(config.model, text, 0).train()
    ids = torch.ones(2, _PIECES, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        regions, sentences = encoder(torch.randn(2, CHANNELS, px, px), ids, torch.ones_like(ids))
        (regions.sum() + sentences.sum()).backward()
    return counter.get_total_flops() / 2


def measure_likelihood(options: Options) -> Figures:
    """Word pieces/s of PLL with a BERT of random weights, and its drift from the CPU's float32."""
    from benchmarks.speed.pll import SIZES, Size, random_bert
    from medclip_dcl.likelihood.pll import Encoding, find_budget, score_encodings

    on_gpu, dtype = _device().type == "cuda", DTYPES[options["precision"]]
    model = random_bert(SIZES["base"] if options["text"] == "base" else Size(64, 2, 4))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30_000, (4000 if on_gpu else 8, 16), generator=generator)
    own = (-1, *range(14), -1)
    encodings = [Encoding(tuple(row), own) for row in ids.tolist()]
    kept = encodings[:8]
    exact = score_encodings(model, kept, 103, "original", 2048)
    model = model.to(_device(), dtype)
    drift = (score_encodings(model, kept, 103, "original", 2048) - exact).abs()
    budget = find_budget(model)
    score_encodings(model, encodings, 103, "original", budget)
    began = time.perf_counter()
    score_encodings(model, encodings, 103, "original", budget)
    seconds = time.perf_counter() - began
    pieces = sum(item.tokens * len(item.ids) for item in encodings)  # a copy a scored piece
    matrices = sum(w.numel() for n, w in model.bert.encoder.named_parameters() if w.ndim == 2)
    peak = options["peaks"][f"{options['precision']}_tflops"] * 1e12
    return {
        "sentences_per_s": len(encodings) / seconds,
        "word_pieces_per_s": pieces / seconds,
        "over_flop_bound": 2 * matrices * pieces / seconds / peak,
        "largest_drift_nats": drift.max().item(),
        "mean_drift_nats": drift.mean().item(),
    }


def measure_resume(_options: Options) -> Figures:
    """Whether a run that is stopped and started again ends with the bits of an uncut one."""
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        for cut in (False, True):
            work = Path(folder) / f"cut-{cut}"
            command = _tiny_run(work, steps=40)
            if cut:
                _stop_after(command, work / "checkpoints" / "metrics.jsonl", lines=10)
            _checked(command)
            digests.append((work / "model" / "model.safetensors").read_bytes())
    return {"resumed_bits_equal": float(digests[0] == digests[1])}


def measure_processes(options: Options) -> Figures:
    """Train on all devices by torchrun, and compare the first loss with one process's."""
    from medclip_dcl.training.logging import read_metrics

    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, options["processes"]):
            work = Path(folder) / str(processes)
            command = _tiny_run(work, steps=8, processes=processes)
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            launcher += [f"--nproc-per-node={processes}", *command[1:]]
            began = time.perf_counter()
            _checked(launcher)
            losses.append(read_metrics(work / "checkpoints")[0]["loss"])
    return {
        "first_loss_difference": abs(losses[0] - losses[1]),
        "wall_s": time.perf_counter() - began,
    }


CASES: Mapping[str, Callable[[Options], Figures]] = {
    "device": measure_device,
    "train": measure_training,
    "likelihood": measure_likelihood,
    "resume": measure_resume,
    "processes": measure_processes,
}

# ---- Parts ----------------------------------------------------------------------------------


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def _tensor_cores(short: bool) -> Iterator[None]:
    """Let float32 products use TensorFloat-32, or not."""
    torch.set_float32_matmul_precision("high" if short else "highest")
    torch.backends.cudnn.allow_tf32 = short
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def _median_seconds(work: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds + 2):  # two warm up
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def _text_config(size: str) -> Any:
    from transformers import BertConfig

    if size == "base":
        return BertConfig()
    return BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )


def _tiny_run(work: Path, steps: int, processes: int = 1) -> list[str]:
    """Write a tiny corpus; the command that trains on it."""
    from tests.support.corpus import write_config, write_corpus

    torch.manual_seed(0)  # the corpus holds a language model of random weights
    write_corpus(work, size_px=40, dropout=0.0)
    train = {"steps": steps, "processes": processes, "save_every_steps": 4}
    config = write_config(work.with_suffix(".yaml"), work, train=train)
    return [sys.executable, "-m", "pipelines.train", "--config", str(config)]


def _stop_after(command: Sequence[str], log: Path, lines: int) -> None:
    """Start a run, and ask it to stop once its log has so many lines."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None:
            if log.is_file() and log.read_bytes().count(b"\n") >= lines:
                run.terminate()
                break
            time.sleep(0.02)


def _checked(command: Sequence[str]) -> None:
    own = os.environ | {"PYTHONPATH": str(_ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=own)
    if done.returncode:
        raise RuntimeError(_reason(done.stderr))


def _reason(errors: str) -> str:
    """The first unindented line after the last traceback: the error, without what follows it."""
    traceback = errors.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    return next((line for line in traceback if line and not line.startswith(" ")), "no message")


if __name__ == "__main__":
    sys.exit(main())
