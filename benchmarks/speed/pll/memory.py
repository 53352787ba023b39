"""Peak memory of scoring, in a process of its own, run as a module with SIZE and LONGEST.

Prints one JSON object, MB: resident once the model is there, once the engine is prepared,
and at the peak of scoring. Linux alone can forget an earlier peak; elsewhere nothing is
printed.
"""

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.speed.pll.models import SIZES, draw, long_encoding, random_bert, tokenizer
from medclip_dcl.likelihood.engines import CPU_BUDGET, prepare_engine
from medclip_dcl.likelihood.pll import encode_sentences, score_encodings
from testing.processes import memory_mib

_ASKED = 12  # pieces of the long sentence that are scored: several batches, all alike
_REFS = Path("/proc/self/clear_refs")


def peak_of(size: str, longest: int) -> dict[str, float] | None:
    """Measure `model`, `engine` and `peak` in a fresh process, MB; None where nothing can tell."""
    command = [sys.executable, "-m", "benchmarks.speed.pll.memory", size, str(longest)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout)) if done.stdout.strip() else None


def main(argv: Sequence[str] | None = None) -> int:
    """Score a few usual sentences and one long one, and print the memory they took."""
    size, longest = (sys.argv[1:] if argv is None else argv)[:2]
    torch.set_num_threads(1)
    if not _REFS.exists():
        return 0
    words = tokenizer()
    encodings = [*encode_sentences(words, draw(6, seed=51)), long_encoding(int(longest), _ASKED)]
    model = random_bert(SIZES[size])
    figures = {"model": _resident()}
    engine = prepare_engine(model, "onnxruntime", 1)
    figures["engine"] = _resident()
    _REFS.write_text("5", encoding="ascii")  # forget the peak so far
    mask_id = int(words.mask_token_id)
    score_encodings(model, encodings, mask_id, "original", CPU_BUDGET, None, engine)
    figures["peak"] = memory_mib("VmHWM")
    print(json.dumps(figures))
    return 0


def _resident() -> float:
    """Resident memory once what is free has been given back, so that it cannot hide a peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory_mib("VmRSS")


if __name__ == "__main__":
    sys.exit(main())
