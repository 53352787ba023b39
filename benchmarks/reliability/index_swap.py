"""The index that stands in its place while its successor is built, asked after every kill."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch.nn.functional import normalize

from benchmarks.fixtures.corpus import write_corpus
from benchmarks.fixtures.published import publish
from medclip_dcl.artifact import read_artifact_header
from medclip_dcl.errors import ArtifactCorrupt, ArtifactError
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.search import Hit, Query, RetrievalIndex

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
    """What the index in its place must answer, and how often it did not.

    Attributes:
        digest: that of the old index.
        old: its answers.
        new: answers of the new one.
        asked: how often it was asked.
        unserved: how often it did not open whole, or answered otherwise.
        replacing: kills after which the old index lay aside, the new one in its place or not yet.
        armed: builds that were to be killed there.
    """

    digest: str
    old: list[Hit]
    new: list[Hit]
    asked: int = 0
    unserved: int = 0
    replacing: int = 0
    armed: int = 0

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
        return "benchmarks.reliability.index_swap:arm", (_RENAMED[self.armed % len(_RENAMED)],)

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
