"""Sentence embeddings of reports from their order: quick thoughts, with M = 2 and the floor at 0.

    python examples/sentence_embeddings.py reports.jsonl [--encoder gru] [--out runs/sentences]

Each line of the file is a report: `findings`, `impression`, and `gold`, its labels as 0 or 1. A
sentence should find its neighbors among the sentences of a batch. Reports repeat themselves:
identical sentences are false negatives, and tau+ can be counted, as the chance that two random
sentences are equal. Judged by the labels that a linear probe reads from the mean vector of a
report's sentences, in five folds of reports. Controls: words alone (TF-IDF), no training, and
training on neighbors that are sentences of any report.

Sources: Logeswaran and Lee 2018 (quick thoughts); Chuang et al. 2020, Table 2 (M = 2).
"""

import argparse
import json
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import rankdata
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import embedding_bag
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from medclip_dcl import debiased_contrastive_loss

BATCH, DIM, LEARNING_RATE, CLIP_NORM, MOST_WORDS = 256, 128, 5e-4, 5.0, 30
LEAST_POSITIVES, FOLDS, RESAMPLES = 30, 5, 500
TRAINED = ("biased", "tau+ of twins", "eta by sentence", "twins removed", "order shuffled")


def read_reports(path: Path) -> tuple[list[list[str]], np.ndarray]:
    """Return each report's sentences, and its labels with enough positives: (reports, labels)."""
    reports, gold = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        facts = json.loads(line)
        text = " ".join(facts[part] or "" for part in ("findings", "impression")).lower()
        parts = re.split(r"(?<=[.!?])\s+", re.sub(r"(^|\s)\d+\.\s", " ", text))
        sentences = [" ".join(re.findall(r"[a-z]+", part)[:MOST_WORDS]) for part in parts]
        if any(sentences):
            reports.append([sentence for sentence in sentences if sentence])
            gold.append(list(facts["gold"].values()))
    labels = np.array(gold)
    return reports, labels[:, labels.sum(axis=0) >= LEAST_POSITIVES]


class Encoder(nn.Module):
    """The mean of a sentence's words, or the last states of a GRU that reads it both ways."""

    def __init__(self, words: int, kind: str) -> None:
        super().__init__()
        self.words = nn.Embedding(words, DIM)
        nn.init.normal_(self.words.weight, std=0.1)
        gru = {"batch_first": True, "bidirectional": True}
        self.gru = nn.GRU(DIM, DIM // 2, **gru) if kind == "gru" else None

    def forward(self, sentences: list[Tensor]) -> Tensor:
        """Return one vector a sentence."""
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        if self.gru is None:
            starts = lengths.cumsum(0) - lengths
            return embedding_bag(torch.cat(sentences), self.words.weight, starts, mode="mean")
        padded = self.words(pad_sequence(sentences, batch_first=True))
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        return self.gru(packed)[1].transpose(0, 1).flatten(1)


def quick_thought_loss(s: Tensor, report: Tensor, eta: Tensor, weights: Tensor) -> Tensor:
    """Contrast each sentence with its neighbors, the next one and the one before.

    M = 2: both neighbors are positives of the correction, and each in its turn the loss's own.
    Scores have no bound, so the floor is 0. `weights` leave a sentence itself out.
    """
    place = torch.arange(len(s))
    neighbors = ((place[:, None] - place).abs() == 1) & (report[:, None] == report)
    first = (report[1:] == report[:-1]).nonzero().flatten()  # of two neighbors
    losses = [
        debiased_contrastive_loss(
            s[rows],
            positive,
            eta[rows],
            gamma=1.0,  # read for a floor other than 0 alone
            weights=weights[rows],
            known_positives=neighbors[rows],
            floor="zero",
        )
        for rows, positive in ((first, first + 1), (first + 1, first))
    ]
    return (losses[0] + losses[1]) / 2


def embed_reports(
    reports: list[list[str]], arm: str, kind: str, seed: int, epochs: int
) -> np.ndarray:
    """Train on the order of the sentences, and give the mean sentence vector of each report."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    sentences = [sentence for report in reports for sentence in report]
    lengths = [len(report) for report in reports]
    report = torch.repeat_interleave(torch.tensor(lengths))
    words = sorted({word for sentence in sentences for word in sentence.split()})
    number = {word: i for i, word in enumerate(words)}
    tokens = [torch.tensor([number[word] for word in text.split()]) for text in sentences]
    text_of = torch.from_numpy(np.unique(sentences, return_inverse=True)[1])  # equal for twins
    eta = torch.zeros(len(sentences))
    if arm in {"tau+ of twins", "eta by sentence"}:
        eta = share_of_twins(sentences)
        eta = eta if arm == "eta by sentence" else eta.mean().expand_as(eta)
    encoders = nn.ModuleList(Encoder(len(words), kind) for _ in range(2))  # sentence, neighbor
    optimizer = torch.optim.Adam(encoders.parameters(), lr=LEARNING_RATE)
    rows_of = torch.arange(len(sentences)).split(lengths)
    for _ in range(epochs):
        places = torch.cat([rows_of[i] for i in rng.permutation(len(reports))])
        shown = torch.from_numpy(rng.permutation(len(sentences)))  # any sentence at any place
        shown = shown if arm == "order shuffled" else torch.arange(len(sentences))
        for mine in places.split(BATCH):
            rows = shown[mine]
            left, right = (encoder([tokens[row] for row in rows]) for encoder in encoders)
            alike = text_of if arm == "twins removed" else torch.arange(len(sentences))
            weights = (alike[rows][:, None] != alike[rows]).float()
            loss = quick_thought_loss(left @ right.T, report[mine], eta[rows], weights)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(encoders.parameters(), CLIP_NORM)
            optimizer.step()
    with torch.no_grad():
        vectors = torch.cat([encoder(tokens) for encoder in encoders], dim=1)
    total = torch.zeros(len(reports), vectors.shape[1]).index_add_(0, report, vectors)
    return (total / report.bincount()[:, None]).numpy()


def share_of_twins(sentences: list[str]) -> Tensor:
    """Return each sentence's share of equals among all others; its mean is tau+."""
    counts = Counter(sentences)
    return torch.tensor([counts[text] - 1.0 for text in sentences]) / (len(sentences) - 1)


def probe(features: object, labels: np.ndarray, scale: bool) -> np.ndarray:
    """Return the rank of every report within its fold, for every label: (reports, labels)."""
    strengths = {"logisticregression__C": [1e-3, 1e-2, 1e-1, 1.0] if scale else [0.1, 1.0, 10, 100]}
    steps = [StandardScaler()] if scale else []
    model = make_pipeline(*steps, LogisticRegression(max_iter=500, class_weight="balanced"))
    search = GridSearchCV(model, strengths, cv=3, scoring="roc_auc")
    ranks = np.zeros(labels.shape)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    for column, label in enumerate(labels.T):
        for rows, left in folds.split(label, label):
            search.fit(features[rows], label[rows])
            scores = search.decision_function(features[left])
            ranks[left, column] = rankdata(scores) / len(left)
    return ranks


def macro_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the area under the ROC curve, mean over labels."""
    positives = labels.sum(axis=0)
    above = (rankdata(scores, axis=0) * labels).sum(axis=0) - positives * (positives + 1) / 2
    return float((above / (positives * (len(labels) - positives))).mean())


def compare(found: dict[str, list[np.ndarray]], labels: np.ndarray) -> list[dict]:
    """Return each arm's AUC by seed and its difference to `biased`: reports and seeds resampled."""
    rng = np.random.default_rng(0)
    seeds = len(found["biased"])
    drawn: dict[str, list[float]] = {arm: [] for arm in found}
    for _ in range(RESAMPLES):
        rows, seed = rng.integers(len(labels), size=len(labels)), rng.integers(seeds)
        base = macro_auc(found["biased"][seed][rows], labels[rows])
        for arm, scores in found.items():
            own = scores[seed % len(scores)][rows]
            drawn[arm].append(macro_auc(own, labels[rows]) - base)
    table = []
    for arm, scores in found.items():
        auc = [macro_auc(one, labels) for one in scores]
        gap = np.mean(auc) - np.mean([macro_auc(one, labels) for one in found["biased"]])
        low, high = np.quantile(drawn[arm], [0.025, 0.975])
        figures = {"auc": auc, "gap": [gap, low, high]}
        table.append({"arm": arm} | {k: np.round(v, 4).tolist() for k, v in figures.items()})
    return table


def draw(table: list[dict], path: Path) -> None:
    """Draw each arm's AUC, one point a seed, and its difference to the biased loss."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(table):
        left.scatter(row["auc"], [place] * len(row["auc"]), 22, "C0")
        gap, low, high = row["gap"]
        right.errorbar(gap, place, xerr=[[gap - low], [high - gap]], fmt="o", color="C0", capsize=3)
    right.axvline(0, color="gray", linewidth=0.8)
    left.set_yticks(range(len(table)), [row["arm"] for row in table])
    left.set(xlabel="macro AUC", ylim=(len(table) - 0.5, -0.5))
    right.set(xlabel="macro AUC minus that of the biased loss, 95 %")
    figure.savefig(path, dpi=100)


def main() -> list[dict]:
    """Train every arm and seed, probe, print and draw; give one row an arm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", type=Path)
    parser.add_argument("--encoder", choices=("mean", "gru"), default="mean")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/sentences"))
    args = parser.parse_args()
    reports, labels = read_reports(args.reports)
    sentences = [sentence for report in reports for sentence in report]
    tau = share_of_twins(sentences).mean().item()
    print(f"{len(reports)} reports, {len(sentences)} sentences, tau+ {tau:.4f}", flush=True)
    words = TfidfVectorizer(sublinear_tf=True).fit_transform(" ".join(text) for text in reports)
    found = {"TF-IDF": [probe(words, labels, scale=False)], "untrained": []}
    found |= {arm: [] for arm in TRAINED}
    for seed, arm in product(range(args.seeds), ("untrained", *TRAINED)):
        epochs = 0 if arm == "untrained" else args.epochs
        vectors = embed_reports(reports, arm, args.encoder, seed, epochs)
        found[arm].append(probe(vectors, labels, scale=True))
        print(f"{arm:16} seed {seed}  {macro_auc(found[arm][-1], labels):.4f}", flush=True)
    table = compare(found, labels)
    for row in table:
        print(row)
    args.out.mkdir(parents=True, exist_ok=True)
    facts = {
        "encoder": args.encoder,
        "tau": round(tau, 5),
        "labels": labels.shape[1],
        "arms": table,
    }
    (args.out / "results.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    draw(table, args.out / "sentence_embeddings.png")
    return table


if __name__ == "__main__":
    main()
