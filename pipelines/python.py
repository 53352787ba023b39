"""Training and evaluation from Python: `medclip_dcl.train` and `medclip_dcl.evaluate`.

They write a config into the run's folder and run it as `medclip run` does, in a process of its own:
the same stages, artifacts and refusals, and the same call goes on with a run that was stopped. What
a notebook has imported, or keeps on a GPU, changes nothing of it.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

from medclip_dcl.core.errors import ArtifactMissing, ConfigError, JobFailed
from medclip_dcl.core.files import find_config, write_bytes, write_text
from medclip_dcl.core.progress import EVERY_S
from medclip_dcl.schemas import html_table, text_table

from .config import laid_over, load_config, setting_tree
from .stages import REPORT

if TYPE_CHECKING:
    from medclip_dcl.inference.predictor import Predictor

Callback = Callable[[Mapping[str, Any]], object]
"""Gets what a run reports, read-only: facts of artifacts, progress, and figures of training steps,
which have a `step`."""

CONFIG = "config.yaml"
_FINE_TUNING_RATE = 5e-5
_BOTH = {"directions": "both", "image_anchor": "same"}
OBJECTIVES: Mapping[str, dict[str, Any]] = {
    "relations": {"kind": "multipositive", "relation": "claims", **_BOTH},
    "debiased": {"kind": "debiased", "relation": "none", **_BOTH},
    "infonce": {"kind": "infonce", "relation": "none", **_BOTH},
}
"""Objectives by the names of docs/how_it_works.md."""


class Figures(dict[str, dict[str, Any]]):
    """Figures of an evaluation by name, such as `zero_shot.mean_auc` or `zero_shot.effusion.auc`.

    A figure has `value`, `low` and `high` (a 95 % interval over patients), `n`, `subjects` and
    `reason`. All print as a table of the headlines.
    """

    def __init__(self, tree: Mapping[str, Any], report: Path) -> None:
        super().__init__(_flat(tree["questions"]))
        self.tree = tree
        """All of `results.json`."""
        self.report = report
        """The page that shows them."""

    def rows(self) -> list[dict[str, Any]]:
        """Lines of the table of headlines, by column."""
        from medclip_dcl.evaluation.results import headlines_of

        return [
            {"figure": item.name, **{name: figure[name] for name in ("value", "low", "high")}}
            | {"chance": item.chance_of(self.tree), "meaning": item.title}
            for item in headlines_of(self.tree)
            if (figure := item.figure_of(self.tree)) is not None
        ]

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *text_table(self.rows())])

    def _repr_html_(self) -> str:
        return f"<p>{self._headline()}</p>{html_table(self.rows())}"

    def _headline(self) -> str:
        tree = self.tree
        words = f"{tree['images']} images of {tree['patients']} patients, truth: {tree['truth']}"
        return f"model {tree['model'][:12]}, split {tree['split']}: {words}"


def _flat(questions: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for question, outcome in questions.items():
        if not outcome["absent"]:
            for group, figures in {"": outcome["figures"], **outcome["groups"]}.items():
                start = f"{question}.{group}." if group else f"{question}."
                yield from ((start + name, figure) for name, figure in figures.items())


class Run:
    """A run on disk, by its folder: its model, figures and report."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @cached_property
    def model(self) -> "Predictor":
        """The trained model."""
        from medclip_dcl.inference.predictor import load

        return load(self.folder)

    @cached_property
    def metrics(self) -> Figures:
        """Figures on the test patients."""
        from medclip_dcl.core.artifact import open_artifact
        from medclip_dcl.evaluation.results import ARTIFACT, read_figures

        tree = read_figures(open_artifact(ARTIFACT.at(self.folder), ARTIFACT))
        return Figures(tree, self.report)

    @property
    def report(self) -> Path:
        """The page to look at; ArtifactMissing where the run has not got to it."""
        path = self.folder / REPORT
        if not path.is_file():
            raise ArtifactMissing(f"{self.folder} holds no {REPORT}; run write_report first")
        return path

    @property
    def log(self) -> list[dict[str, Any]]:
        """Figures of training, by step, and of validations."""
        from medclip_dcl.training.checkpoint import ARTIFACT
        from medclip_dcl.training.logging import read_metrics

        return read_metrics(ARTIFACT.at(self.folder))

    def __repr__(self) -> str:
        return f"run {self.folder}\n{self.metrics!r}\nreport {self.report}"

    def _repr_html_(self) -> str:
        return f"{self.metrics._repr_html_()}<p>report: {self.report}</p>"


def train(
    dataset: Any,
    *,
    out: Path | str = "",
    base: Any = None,
    objective: str | Mapping[str, Any] = "",
    columns: Mapping[str, str] | None = None,
    images: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    replace: bool = False,
    callback: Callback | None = None,
) -> Run:
    """Train a model and evaluate it on patients of its own; the same call resumes.

    Args:
        dataset: a table of images and reports (CSV, Parquet or JSONL), whose columns are guessed
            and printed; a config; or the rows themselves, a data frame or mappings, whose images
            may be anything that `Predictor.classify` takes.
        out: folder of the run; by default `runs/NAME` of the file.
        base: a model package, or its `Predictor`, to start from in place of random weights.
        objective: one of `OBJECTIVES`, or settings of section `objective`; by default relations
            where reports are English, else infonce, and a config's own.
        columns: role -> column, for what is not guessed right, such as `{"report": "Befund"}`.
        images: folder that paths of images start at; by default it is looked for.
        settings: any setting of configs/README.md, as `{"train.steps": 400}`.
        replace: whether a finished model of other settings may be replaced.
        callback: gets what the run reports, which is printed without one.

    ConfigError where a setting breaks its rule; StudyError where the table cannot be read;
    JobFailed where a stage failed; the message is the stage's.
    """
    folder, table = _table_of(dataset, out, "trained", "")
    tree = _tree_of(table, folder, columns, images, callback)
    tree = laid_over(tree, _objective(objective))
    if base is not None:
        tree = laid_over(tree, _start_from(base))
    _run(laid_over(tree, _nested(settings)), folder, replace, callback)
    return Run(folder)


def evaluate(
    model: Any,
    dataset: Any,
    *,
    labels: Mapping[str, str] | Iterable[str] | None = None,
    findings: Any = None,
    out: Path | str = "",
    columns: Mapping[str, str] | None = None,
    images: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    replace: bool = False,
    callback: Callback | None = None,
) -> Figures:
    """Evaluate a model on a table: zero-shot findings against labels, and retrieval of reports.

    All rows are asked, or those of split `test` where a column names splits.

    Args:
        model: a `Predictor`, a folder, or OWNER/NAME@COMMIT of a hub.
        dataset: as in `train`; it needs no reports.
        labels: finding -> column of its truth, or names that are both; by default columns that bear
            a finding's name.
        findings: prompts of these findings, as of `Predictor.classify`; by default the model's own,
            and for other findings the usual pair.
        out: folder of the evaluation; by default `runs/NAME-evaluated` of the file.
        columns: as in `train`.
        images: as in `train`.
        settings: as in `train`.
        replace: whether finished results of other settings may be replaced.
        callback: as in `train`.

    Returns:
        The figures, each with a 95 % interval over patients.
    """
    from medclip_dcl.inference.predictor import Predictor, load

    if isinstance(model, Run):
        model = model.model
    predictor = model if isinstance(model, Predictor) else load(model)
    folder, table = _table_of(dataset, out, "rows", "-evaluated")
    label_columns = _label_columns(labels)
    tree = _tree_of(table, folder, columns, images, callback, label_columns)
    tree = {name: tree[name] for name in ("base", "work", "source") if name in tree}
    if label_columns:
        _write_prompts(folder, predictor, label_columns, findings)
        tree = laid_over(tree, {"evaluate": {"prompts": str((folder / _PROMPTS).resolve())}})
    own = {"evaluate": {"model": str(_folder_of(predictor).resolve())}}
    _run(laid_over(laid_over(tree, own), _nested(settings)), folder, replace, callback)
    return Run(folder).metrics


_PROMPTS = "prompts.yaml"


def _table_of(dataset: Any, out: Path | str, default: str, ending: str) -> tuple[Path, Path]:
    """Name the folder of a run, and its table or config; rows become a table in that folder."""
    if isinstance(dataset, str | os.PathLike):
        table = Path(dataset)
        return Path(out or f"runs/{table.stem}{ending}"), table
    if hasattr(dataset, "to_records"):  # a data frame
        dataset = dataset.to_dict("records")
    if isinstance(dataset, Mapping | bytes) or not isinstance(dataset, Iterable):
        raise ConfigError(
            "dataset must be the path of a table or of a config, a data frame, or a list of rows, "
            "each a mapping with an image and a report"
        )
    rows = [
        {"image": row[0], "report": row[1]} if isinstance(row, tuple) and len(row) == 2 else row
        for row in dataset
    ]
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(
            "dataset must have one row or more, each a mapping such as {'image': ..., 'report': "
            "..., 'patient': ...}, or a pair of image and report"
        )
    folder = Path(out or f"runs/{default}{ending}")
    return folder, _write_rows(rows, folder / "dataset")


def _write_rows(rows: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    from medclip_dcl.data.images import file_bytes, is_image

    lines = []
    for number, row in enumerate(rows):
        line = dict(row)
        for name, value in row.items():
            if isinstance(value, os.PathLike):
                line[name] = str(Path(value).absolute())
            elif is_image(value):
                data = file_bytes(value)
                ending = {b"\x89": ".png", b"\xff": ".jpg"}.get(data[:1], ".dcm")
                path = folder / "images" / f"{number:06d}{ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, data)
                line[name] = str(path.absolute())
        lines.append(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "rows.jsonl", "".join(lines))
    return folder / "rows.jsonl"


def _tree_of(
    table: Path,
    folder: Path,
    columns: Mapping[str, str] | None,
    images: Path | str | None,
    callback: Callback | None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    from .init import config_of_table

    work = {"work": str(folder.absolute())}
    if table.suffix in {".yaml", ".yml"} or find_config(table).suffix == ".yaml":
        return {"base": str(find_config(table).absolute()), **work}
    where = None if images is None else Path(images)
    with redirect_stdout(sys.stdout if callback is None else io.StringIO()):
        text, _ = config_of_table(
            table.absolute(), Path(f"{table.stem}.yaml"), where, columns or {}, labels
        )
    return {**yaml.safe_load(text), **work}


def _objective(named: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(named, Mapping):
        return {"objective": dict(named)}
    if not named:
        return {}
    if named not in OBJECTIVES:
        raise ConfigError(
            f"objective {named!r} is not known; choose of {', '.join(OBJECTIVES)}, or give "
            "settings of the section `objective`"
        )
    return {"objective": dict(OBJECTIVES[named])}


def _folder_of(model: Any) -> Path:
    from medclip_dcl.inference.predictor import Predictor, published_folder

    if isinstance(model, Predictor):
        if model.folder is None:
            raise ConfigError("this model was never on a disk; name its folder")
        return model.folder
    return published_folder(Path(model.folder if isinstance(model, Run) else model))


def _start_from(base: Any) -> dict[str, Any]:
    from medclip_dcl.inference.model_package import read_model_package

    folder = _folder_of(base).resolve()
    images = read_model_package(folder).config.images
    own = images.model_dump(mode="json", include={"size_px", "voi", "equalize", "fit"})
    rates = dict.fromkeys(("learning_rate", "text_learning_rate"), _FINE_TUNING_RATE)
    return {"model": {"pretrained": str(folder)}, "images": own, "train": rates}


def _label_columns(labels: Mapping[str, str] | Iterable[str] | None) -> dict[str, str]:
    if labels is None or isinstance(labels, Mapping):
        return dict(labels or {})
    return {name: name for name in ([labels] if isinstance(labels, str) else labels)}


def _write_prompts(
    folder: Path, model: "Predictor", labels: Mapping[str, str], findings: Any
) -> None:
    from medclip_dcl.inference.prompts import parse_prompts

    given = () if findings is None else parse_prompts(findings, model.findings)
    prompts = [parse_prompts(name, (*given, *model.findings))[0] for name in labels]
    entries = [
        {"name": name, "label": name, "positive": [*item.positive], "negative": [*item.negative]}
        for name, item in zip(labels, prompts, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(
        folder / _PROMPTS,
        yaml.safe_dump({"format_version": 1, "findings": entries}, allow_unicode=True),
    )


def _nested(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in (settings or {}).items():
        part = _nested(value) if isinstance(value, Mapping) else value
        tree = laid_over(tree, setting_tree(name, part))
    return tree


def _parsed(line: str) -> dict[str, Any] | None:
    with suppress(json.JSONDecodeError):
        event = json.loads(line)
        return event if isinstance(event, dict) else None
    return None


def _run(tree: dict[str, Any], folder: Path, replace: bool, callback: Callback | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
    write_text(
        folder / CONFIG, f"# Written by medclip_dcl for this run; `medclip run` takes it.\n{text}"
    )
    load_config(folder / CONFIG)  # what is wrong is raised here, as what it is
    command = [sys.executable, "-m", "medclip_dcl.pipelines", "run", str(folder / CONFIG)]
    command += ["--log", "json"] * (callback is not None) + ["--replace"] * replace
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment |= {} if callback is None else {EVERY_S: "0.5"}
    last_step = max((line["step"] for line in Run(folder).log), default=-1)
    message = "the run failed"

    def report(*events: dict[str, Any]) -> None:
        # New lines of the log of training, which other processes write, come first.
        nonlocal last_step
        assert callback is not None
        logged = [line for line in Run(folder).log if line["step"] > last_step]
        last_step = max((line["step"] for line in logged), default=last_step)
        for event in (*logged, *events):
            callback(MappingProxyType(event))

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                event = _parsed(line)
                if event is None and ": " in line:
                    message = line.rstrip("\n")
                if event is not None and callback:
                    report(event)
                else:
                    print(line, end="", flush=True, file=sys.stderr if callback else sys.stdout)
            if callback:
                report()
        except BaseException:
            process.terminate()  # it saves; the same call goes on
            process.stdout.read()
            raise
    if process.returncode:
        raise JobFailed(message, process.returncode)
