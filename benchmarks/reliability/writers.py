"""Every command that writes files, on small folders: what to run, and what it must leave."""

import functools
import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from medclip_dcl.artifact import HEADER, ArtifactType, open_artifact, read_artifact_header
from medclip_dcl.data import manifest
from medclip_dcl.files import STAGED, sha256_file
from medclip_dcl.tables import read_table
from testing import forkserver
from testing.corpus import write_config
from testing.evaluated import PROMPTS, write_evaluated
from testing.hub import COMMIT, DatasetHub
from testing.published import publish
from testing.service import png

_DRAFT = re.compile(r"/\.([^/]+)\.draft/")

Base = Literal["studies", "evaluated", "half_trained"]
Before = tuple[str, tuple[Any, ...]]
CONFIG = "configs/demo.yaml"
_STUDIES = (
    *("generate.patients=8", "generate.size_px=64"),
    *("workers=1", "source.max_reject_share=1"),
    "images.size_px=64",
    *("language_model.steps=3", "language_model.vocabulary=300"),
    *("language_model.hidden_size=32", "likelihood.unit_pieces=1500"),
)
_EVALUATED: dict[str, dict[str, Any]] = {
    "source": {"root": "${WORK}"},
    "evaluate": {"prompts": "${WORK}/prompts.yaml", "bootstrap": 10, "retrieval_pool": 4},
    "card": {"intended_use": "Tests.", "limits": ["Tiny."], "licence": "mit", "data": "CC0-1.0"},
    "probabilities": {"least_per_class": 2},
    "train": {"steps": 4, "save_every_steps": 2},
    "table1": {"rows": ["dcl_05"], "seeds": [0]},
    "index": {"shard_rows": 16},
}
_GRID = {
    "axes": {"eta.constant": [0.0, 0.1]},
    "settings": {"eta.source": "constant"},
    "seeds": [0],
    "figures": ["grounding.cnr"],
}
_COLUMNS = {name: name for name in ("subject_id", "study_id", "findings", "image", "image_id")}
_HUB = ("source.kind=huggingface", f"source.columns={json.dumps(_COLUMNS)}")


@dataclass(frozen=True)
class Writer:
    """A command that writes into a work folder."""

    name: str
    base: Base
    settings: tuple[str, ...] = ()
    old: tuple[str, ...] | None = None
    """Settings with which an artifact was made that is there before; None: there is none."""
    once: bool = False
    """Whether it refuses to run where what it writes is there already."""
    leaf: bool = False
    """Whether no later one reads what it writes."""
    job: str = ""
    """Its module in `pipelines`; else the part of the name before a space."""
    words: tuple[str, ...] = ("--config", "{config}", "--set", "work={work}")
    before: tuple[Before, ...] = ()
    """Functions that are called in its process first."""
    timed: tuple[str, ...] = ()
    """Names of files that hold times, which may be the same in two runs by chance."""
    stride: int = 1
    """At most one in so many of its writes fails: a loop makes the same for every row, or it takes
    long."""

    @property
    def command(self) -> str:
        """Its module in `pipelines`."""
        return self.job or self.name.partition(" ")[0]

    def run(
        self, work: Path, log: Path, before: Before | None = None, extra: Sequence[str] = ()
    ) -> int:
        """Run it in a process of its own; give the exit code."""
        process = self.start(work, log, before, extra)
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    def start(
        self, work: Path, log: Path, before: Before | None = None, extra: Sequence[str] = ()
    ) -> ForkServerProcess:
        """Start it in a process group of its own; `before` is called in it first."""
        config = CONFIG if self.base == "studies" else str(work / "config.yaml")

        def filled(text: str) -> str:
            return str(text).replace("{config}", config).replace("{work}", str(work))

        words = [filled(word) for word in self.words]
        given = [*(_STUDIES if self.base == "studies" else ()), *self.settings, *extra]
        if "--config" in words:
            words += [word for item in given for word in ("--set", filled(item))]
        own = [(name, tuple(map(filled, arguments))) for name, arguments in self.before]
        calls = [*own, *([before] if before else [])]
        temporary = work / "tmp"
        temporary.mkdir(exist_ok=True)
        return forkserver.start(
            f"pipelines.{self.command}",
            words,
            log,
            environment={
                "TMPDIR": str(temporary),
                "HF_HOME": str(temporary),
                "MEDCLIP_ENGINE": "torch",  # an export of graphs takes seconds
            },
            before=("benchmarks.reliability.writers:call", (calls,)),
        )


def call(functions: Sequence[Before]) -> None:
    """Call functions by their names; called in the process itself."""
    import tempfile
    from importlib import import_module

    tempfile.tempdir = None  # that of the process which this one was forked from
    for name, arguments in functions:
        module, _, function = name.partition(":")
        getattr(import_module(module), function)(*arguments)


def copy_row_by_row() -> None:
    """Let every row of a dataset be a part, so that there are many."""
    from medclip_sources import huggingface

    huggingface._PART_ROWS = huggingface._BATCH = 1


def reach_hub(url: str) -> None:
    """Let datasets be downloaded from a hub on loopback."""
    os.environ |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}
    os.environ |= {"HF_TOKEN": "", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for package in ("huggingface_hub", "datasets"):
        forkserver.forget(package)


def archive_folder(folder: str) -> None:
    """Put a folder of DICOM files in the place of an archive."""
    from pydicom import dcmread

    from medclip_hospital import dicomweb

    found = {}
    for path in sorted(Path(folder).rglob("*.dcm")):
        data = dcmread(path, stop_before_pixels=True, force=True)
        if "SOPInstanceUID" in data and "StudyInstanceUID" in data:
            image = dicomweb.ArchivedImage(data.StudyInstanceUID, "1", data.SOPInstanceUID)
            found[image] = path
    dicomweb.DicomWeb.images = lambda *_: [*found]  # type: ignore[method-assign]
    dicomweb.DicomWeb.fetch = lambda _, image: found[image].read_bytes()  # type: ignore[method-assign]


_HERE = "benchmarks.reliability.writers"
REPLACING = ("--config", "{config}", "--set", "work={work}", "--replace")
_APART = ("--config", "{config}", "--set", "work={work}/apart")
_PACS = (
    "source.boxes=",
    "source.kind=dicomweb",
    "source.root={work}/mirror",
    "source.archive=http://archive",
)


def writers(hub: str = "") -> tuple[Writer, ...]:
    """List them in the order in which they need one another; `hub` is a hub's address."""
    half_trained = Writer("train half way", "half_trained", words=REPLACING)
    return (*_on_studies(), *_on_evaluated(hub), half_trained)


def _on_studies() -> tuple[Writer, ...]:
    studies = functools.partial(Writer, base="studies")
    return (
        studies("generate_studies", old=("seed=1",)),
        studies("build_manifest", old=("seed=1", "source.test_share=0.5")),
        studies(
            "build_manifest of a PACS",
            leaf=True,
            settings=_PACS,
            words=_APART,
            before=((f"{_HERE}:archive_folder", ("{work}/studies",)),),
        ),
        studies("check_data", leaf=True, old=("seed=1",)),
        studies("prepare_images", leaf=True, old=("images.size_px=48",)),
        studies("split_sentences", old=('sentences.sections=["findings"]',)),
        studies("read_claims"),
        studies("fit_language_model", old=("language_model.steps=2",)),
        studies("score_sentences", old=("likelihood.variant=within_word_l2r",)),
        studies("build_eta_cache", old=("eta.a=0.1",)),
        studies("answer_images", settings=('answer.objects=["sr", "pr", "sc"]',), stride=3),
        studies(
            "answer_images by graphs", settings=("inference.engine=openvino",), old=("seed=0",)
        ),
    )


_OF_SENTENCES = ("{work}/sentences/sentences.parquet", "--sentences", "text")
_OF_SENTENCES += ("--model", "{work}", "--out", "{work}/vectors.parquet")


def _on_evaluated(hub: str) -> tuple[Writer, ...]:
    evaluated = functools.partial(Writer, base="evaluated")
    once = functools.partial(evaluated, once=True)
    return (
        evaluated(
            "build_manifest of rows",
            settings=(*_HUB, "source.root={work}/dataset"),
            words=_APART,
            before=((f"{_HERE}:copy_row_by_row", ()),),
            stride=7,
        ),
        evaluated(
            "build_manifest of a hub",
            settings=(
                *_HUB,
                *("source.root={work}/fetched", f"source.name=someone/chests@{COMMIT}"),
            ),
            words=("--config", "{config}", "--set", "work={work}/apart2"),
            before=((f"{_HERE}:reach_hub", (hub,)),),
        ),
        evaluated(
            "pretrain_images",
            old=("pretrain.eta=0.1",),
            settings=("pretrain.steps=4", "train.save_every_steps=2"),
        ),
        evaluated("calibrate_scores"),
        evaluated("fit_head"),
        evaluated("evaluate", old=("evaluate.bootstrap=5",)),
        evaluated("write_cards", old=("card.licence=apache-2.0",)),
        evaluated("build_index", old=("index.shard_rows=8",)),
        evaluated("ask_service"),
        evaluated("write_report", old=("report.private=true",)),
        evaluated("compare", words=("{work}", "{work}", "--json", "{work}/comparison.json")),
        once("embed", words=_OF_SENTENCES),
        once("export", words=("{work}", "--to", "transformers", "--out", "{work}/exported")),
        once(
            "export to onnx",
            words=("{work}", "--to", "onnx", "--out", "{work}/graphs"),
            stride=4,  # takes half a minute
        ),
        evaluated(
            "push_model",
            words=(
                *("--config", "{config}", "--set", "work={work}", "--repo", "someone/model"),
                *("--dry-run", "--allow-vocabulary"),
            ),
        ),
        evaluated(
            "sweep",
            words=(
                *("--config", "{config}", "--set", "work={work}"),
                *("--grid", "{work}/grid.yaml", "--processes", "1"),
            ),
            timed=("sweep.csv", "sweep.html"),
        ),
        evaluated("table1"),
        evaluated("train", old=("seed=1",), words=REPLACING),
        evaluated("train on features", settings=("train.cache_features=true",), words=REPLACING),
    )


def fill_hub(hub: DatasetHub, dataset: Path) -> None:
    """Give a hub the files of a dataset."""
    hub.files = {
        path.relative_to(dataset).as_posix(): path.read_bytes()
        for path in sorted(dataset.rglob("*"))
        if path.is_file() and path.name != HEADER
    }


def write_base(base: Base, work: Path) -> Path:
    """Write what the first command of a base works on."""
    if base == "studies":
        work.mkdir(parents=True)
        publish(work / "model")
        return work
    write_evaluated(work)
    rows = read_table(work / "manifest", manifest.IMAGES).to_pylist()
    for row in rows:
        (work / row["path"]).write_bytes(png())
        row |= {"image": png(), "findings": "The heart is large."}
    (work / "dataset").mkdir()
    columns = {name: [row[name] for row in rows[:12]] for name in _COLUMNS}
    pq.write_table(pa.table(columns), work / "dataset/train.parquet")
    (work / "prompts.yaml").write_text(PROMPTS)
    (work / "grid.yaml").write_text(yaml.safe_dump(_GRID))
    write_config(work / "config.yaml", work, **_EVALUATED)
    with (work / "config.yaml").open("a") as stream:
        stream.write("jobs: [train]\n")  # a grid's runs find everything before it
    if base == "half_trained":
        writer = Writer("train", base, words=REPLACING)
        stop = ("benchmarks.reliability.exactness:arm", (str(work), 1, int(signal.SIGTERM), 0))
        if (code := writer.run(work, work / "stopped.log", stop)) != 75:
            raise RuntimeError(f"the run that trials go on from ended with exit code {code}")
    return work


def snapshot(work: Path) -> dict[str, str]:
    """Digests of every artifact below a folder, and of every file outside of one.

    An artifact that does not open is called by its error's type.
    """
    found: dict[str, str] = {}
    folders = [path.parent for path in work.rglob(HEADER) if _is_seen(path, work)]
    folders += [  # its writer ended between two renames
        path.with_name(path.name[1:].removesuffix(".retired"))
        for path in work.rglob(".*.retired")
        if (path / HEADER).is_file()
    ]
    for folder in sorted(set(folders)):
        found[folder.relative_to(work).as_posix()] = digest_of(folder)
    for path in sorted(work.rglob("*")):
        inside = any(parent in folders for parent in path.parents)
        if path.is_file() and not inside and _is_seen(path, work):
            found[path.relative_to(work).as_posix()] = sha256_file(path)
    return found


def digest_of(folder: Path) -> str:
    """Give the digest of an artifact, every byte checked; its error's type where it has none."""
    from medclip_dcl.errors import ArtifactError

    retired = folder.with_name(f".{folder.name}.retired")
    try:
        head = read_artifact_header(folder if folder.exists() else retired)
        return open_artifact(folder, ArtifactType(head.kind, head.version, "its job")).digest
    except ArtifactError as error:
        return type(error).__name__


def _is_seen(path: Path, work: Path) -> bool:
    parts = path.relative_to(work).parts
    return parts[0] != "tmp" and not any(part.startswith(".") for part in parts)


def units(work: Path, *, drafts: bool = False) -> dict[str, tuple[str, int]]:
    """Digest and time of whole files that the next run must not make again, in drafts or anywhere.

    Their names are the same in a draft and after its commit.
    """
    patterns = (
        "unit-*.json",
        "shard-*",
        "*rows*/*.arrow",
        "mirror/*/*.dcm",
        "run.json",
        "data/*.parquet",
    )
    found = {path for pattern in patterns for path in work.rglob(pattern) if path.is_file()}
    here = [(_DRAFT.sub(r"/\1/", f"/{path.relative_to(work)}"), path) for path in found]
    return {
        name: (sha256_file(path), path.stat().st_mtime_ns)
        for name, path in sorted(here, key=lambda item: _DRAFT.search(str(item[1])) is not None)
        if not path.name.startswith(STAGED)
        and not (drafts and "mirror" not in name and _DRAFT.search(str(path)) is None)
    }


def litter(work: Path) -> list[str]:
    """List what half-written files and drafts are left where nothing is being written."""
    names = (f"{STAGED}*", ".*.draft", ".*.retired")
    return sorted(path.name for name in names for path in work.rglob(name))
