"""A file of sentences -> how likely a language model finds each, and its class probability eta.

    python examples/sentences_to_eta.py sentences.txt --model FOLDER --output eta.csv

FOLDER holds a masked language model of transformers with its tokenizer: CXR-BERT, or
`runs/demo/language_model` after `medclip demo`. One sentence a line; duplicates are scored once.
The table has `sentence`, `pll_nats` and `eta`, the commonest first: look whether your stock phrases
stand there before you train with it. Nothing is downloaded.
"""

import argparse
import csv
import sys
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoTokenizer

from medclip_dcl import eta_from_pll, pseudo_log_likelihood


def main() -> None:
    """Read, score, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, help="CSV file; standard output without it")
    parser.add_argument("--a", type=float, default=0.2, help="eta = a * p**k")
    parser.add_argument("--k", type=float, default=0.35)
    parser.add_argument("--eta-max", type=float, default=0.2)
    options = parser.parse_args()

    lines = options.sentences.read_text(encoding="utf-8").splitlines()
    sentences = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    model = AutoModelForMaskedLM.from_pretrained(options.model, local_files_only=True).eval()
    pll_nats = pseudo_log_likelihood(model, tokenizer, sentences, progress=sys.stderr.isatty())
    eta = eta_from_pll(pll_nats, a=options.a, k=options.k).clamp(max=options.eta_max)

    file = options.output.open("w", newline="", encoding="utf-8") if options.output else sys.stdout
    with file:
        table = csv.writer(file)
        table.writerow(["sentence", "pll_nats", "eta"])
        for row in pll_nats.argsort(descending=True).tolist():
            table.writerow(
                [sentences[row], f"{float(pll_nats[row]):.4f}", f"{float(eta[row]):.3g}"]
            )


if __name__ == "__main__":
    main()
