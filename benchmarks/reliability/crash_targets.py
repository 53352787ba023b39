"""Jobs to kill: what each needs, writes and acknowledges, on a small generated corpus.

An index that stands in its place while its successor is built is asked after every kill.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.functional import normalize

from medclip_dcl.artifact import read_artifact_header
from medclip_dcl.errors import ArtifactCorrupt, ArtifactError
from medclip_dcl.files import sha256_file
from medclip_dcl.likelihood import scoring
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.search import Hit, Query, RetrievalIndex
from medclip_dcl.tables import read_table
from testing.corpus import write_corpus
from testing.published import publish

REPLACING_SHARE = 1 / 6
"""Share of the kills that come while the new index takes the old one's place."""

_RETIRED = f".{ARTIFACT.name}.retired"
_RENAMED = (ARTIFACT.name, f".{ARTIFACT.name}.draft")
_OLD_MODEL, _MODEL = "old_model", "model"
_HITS = 5


def write_fixture(work: Path, build: Callable[[Path], None]) -> Path:
    """Write a tiny corpus, an index of it, and the other model that the next index is built with.

    `build` runs `build_index` on a folder.
    """
    write_corpus(work)
    publish(work / _MODEL)
    build(work)
    (work / _MODEL).rename(work / _OLD_MODEL)
    publish(work / _MODEL, seed=1)
    return work


def arm(name: str) -> None:
    """Let this process be killed once it has renamed a folder `name`; called in it."""
    rename = Path.replace

    def killed(self: Path, target: Path) -> Path:
        found = rename(self, target)
        if self.name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    Path.replace = killed  # type: ignore[method-assign,assignment]


@dataclass
class IndexSwap:
    """What the index in its place must answer, and how often it did not."""

    digest: str
    """That of the old index."""
    old: list[Hit]
    """Its answers."""
    new: list[Hit]
    """Answers of the new one."""
    asked: int = 0
    """How often it was asked."""
    unserved: int = 0
    """How often it did not open whole, or answered otherwise."""
    replacing: int = 0
    """Kills after which the old index lay aside, the new one in its place or not yet."""
    armed: int = 0
    """Builds that were to be killed there."""

    @classmethod
    def between(cls, base: Path, reference: Path) -> Self:
        """Note what two indices answer, by their folders, which hold both models.

        ArtifactError where one does not open; ValueError where they answer alike, so that nobody
        could tell which one served.
        """
        old, new = _answers(base, _OLD_MODEL), _answers(reference, _MODEL)
        if old == new:
            raise ValueError("the old index answers as the new one; give them other models")
        return cls(read_artifact_header(ARTIFACT.at(base)).digest, old, new)

    def is_replaced(self, work: Path) -> bool:
        """Return whether another index than the old one bears its name.

        False also where none can be read: the old one must serve until there is another.
        """
        try:
            return read_artifact_header(ARTIFACT.at(work)).digest != self.digest
        except ArtifactCorrupt:
            return False

    def lacks(self, work: Path, kills: int) -> bool:
        """Return whether the next kill should come while one index replaces the other.

        So it is where too few were tried, and the old index still bears its name.
        """
        return self.armed < REPLACING_SHARE * kills and not self.is_replaced(work)

    def arming(self) -> tuple[str, tuple[str, ...]]:
        """Give what kills the next build after the first rename or, in turn, after the second."""
        self.armed += 1
        return "benchmarks.reliability.crash_targets:arm", (_RENAMED[self.armed % len(_RENAMED)],)

    def counts(self) -> dict[str, int]:
        """Give what was counted."""
        return {name: getattr(self, name) for name in ("asked", "unserved", "replacing")}

    def ask(self, work: Path) -> None:
        """Open what a kill left in the index's place, every byte checked, and ask it."""
        self.asked += 1
        self.replacing += (work / _RETIRED).exists()
        model, expected = (_MODEL, self.new) if self.is_replaced(work) else (_OLD_MODEL, self.old)
        try:
            self.unserved += _answers(work, model) != expected
        except ArtifactError:
            self.unserved += 1


def _answers(work: Path, model: str) -> list[Hit]:
    index = RetrievalIndex.open(ARTIFACT.at(work), read_artifact_header(work / model).digest)
    drawn = torch.randn(index.similarity.dim, generator=torch.Generator().manual_seed(0))
    vector = normalize(drawn, dim=0)
    images = index.search(Query("image", _HITS, vector=vector))
    return images + index.search(Query("text", _HITS, vector=vector))


CONFIG = "configs/demo.yaml"
SAVED_EVERY = 4
SMALL = (
    "generate.patients=150",
    "generate.coverage_images=0",
    "generate.size_px=128",
    "generate.workers=1",
    "images.shard_rows=8",
    "images.workers=2",
    "likelihood.unit_pieces=500",
    "likelihood.workers=1",
    "language_model.steps=20",
)
TINY: dict[str, dict[str, dict[str, Any]]] = {
    "train": {"train": {"steps": 48, "save_every_steps": SAVED_EVERY}},
    "build_index": {"index": {"shard_rows": 2}},
}
"""Settings of jobs that work on the tiny corpus of the tests: their restarts are many."""

KILLS = {"quick": 6, "normal": 12, "long": 60}

Facts = dict[str, str]
"""What is acknowledged: its name and what it holds."""


@dataclass(frozen=True)
class CrashTarget:
    """A job to kill."""

    job: str
    artifact: str
    needs: tuple[str, ...]
    traces: str
    """Files that show that it is under way, below the config's folder."""
    staged: str
    """Folders in which a file half written shows that something is being acknowledged."""
    acknowledged: Callable[[Path], list[tuple[str, str]]]
    """Reads what is acknowledged, below the config's folder, while the artifact is a draft."""
    final: Callable[[Path], Facts]
    """Reads the same of the finished artifact."""
    quick_share: float = 1.0
    """Share of the quick kills that a job gets whose restarts are long."""
    flush_share: float = 1 / 3
    """Share of the kills that must hit a flush."""
    fixture: Callable[[Path, Callable[[Path], None]], Path] | None = None
    """Writes what the job reads, with a way to run it, where no job of `needs` does."""
    replaces: bool = False
    """Whether an old index stands in its place, which must serve until the new one does."""

    def kills(self, tier: str) -> int:
        """Say how many kills must hit."""
        return max(1, round(KILLS[tier] * (self.quick_share if tier == "quick" else 1)))

    def flushes(self, tier: str) -> int:
        """Say how many of them must hit a flush."""
        return int(self.kills(tier) * self.flush_share)


def shards(folder: Path) -> list[tuple[str, str]]:
    return [(path.name, sha256_file(path)) for path in sorted(folder.glob("shard-*"))]


def spans(work: Path) -> list[tuple[str, str]]:
    draft = work / ".likelihoods.draft"
    try:
        return list(scores(draft).items())  # put together already, and the parts half removed
    except ArtifactCorrupt:
        parts, _ = scoring.read_parts(draft / scoring.PARTS)
    names = (f"{row['text_key']} {row['first']}" for row in parts.to_pylist())
    return list(zip(names, (value.hex() for value in parts["pll_nats"].to_pylist()), strict=True))


def scores(folder: Path) -> Facts:
    table = read_table(folder, scoring.LIKELIHOODS)
    return {f"{row['text_key']} 0": row["pll_nats"].hex() for row in table.to_pylist()}


def vectors(folder: Path) -> list[tuple[str, str]]:
    """Shards that a build keeps and does not make again, so that the time of writing stays too."""
    pooled = {path.stem[-5:] for path in folder.glob("pooled-*")}  # the last of a shard of images
    return [
        (path.name, f"{sha256_file(path)} {path.stat().st_mtime_ns}")
        for path in sorted({*folder.glob("[a-z]*-?????.*"), *folder.glob("sketch.npy")})
        if path.stem[-5:] in pooled or not path.name.startswith(("regions-", "pictures-"))
    ]


def checkpoints(_work: Path) -> list[tuple[str, str]]:
    return []  # a run keeps its newest ones alone; its losses tell whether one was lost


CRASH_TARGETS = (
    CrashTarget(
        "prepare_images",
        "prepared",
        ("generate_studies", "build_manifest"),
        ".prepared.draft/shard-*",
        ".prepared.draft",
        lambda work: shards(work / ".prepared.draft"),
        lambda work: dict(shards(work / "prepared")),
    ),
    CrashTarget(
        "score_sentences",
        "likelihoods",
        ("generate_studies", "build_manifest", "split_sentences", "fit_language_model"),
        ".likelihoods.draft/parts",
        ".likelihoods.draft/parts",
        spans,
        lambda work: scores(work / "likelihoods"),
    ),
    CrashTarget(
        "train",
        "model",
        (),
        "checkpoints/step-*",
        "checkpoints/.step-*.draft",
        checkpoints,
        lambda _work: {},
        quick_share=1 / 3,
        flush_share=1 / 2,
        fixture=lambda work, _: write_corpus(work),
    ),
    CrashTarget(
        "build_index",
        "index",
        (),
        ".index.draft/regions-*",
        ".index.draft",
        lambda work: vectors(work / ".index.draft"),
        lambda work: dict(vectors(work / "index")),
        fixture=write_fixture,
        replaces=True,
    ),
)
