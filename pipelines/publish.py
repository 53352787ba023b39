"""Models from elsewhere and for elsewhere: public checkpoints, exports, copies on a hub."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)

from medclip_dcl.core.artifact import HEADER, Artifact, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import CheckpointError, ConfigError, HubError
from medclip_dcl.core.files import disk_faults_named, write_bytes, write_text
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.inference import adoption, model_package
from medclip_dcl.inference.export import Format, export_formats
from medclip_dcl.inference.heads import read_heads, write_heads
from medclip_dcl.inference.model_package import (
    ARTIFACT,
    CARD,
    CONFIG,
    SUBJECTS,
    TEXT,
    TEXT_FILES,
    WEIGHTS,
)
from medclip_dcl.models.public.weights import PACKAGE, fetch_weights
from medclip_dcl.training.config import read_training_config

from .cli import ConfigFile, Overrides, config_of, run_folder
from .pages import DATA_CARD, MODEL_CARD, cards_of, json_text

_KEPT = (WEIGHTS, *(f"{TEXT}/{name}" for name in TEXT_FILES))
_KEPT_IF_THERE = (
    model_package.CALIBRATION_FILE,
    model_package.INPUT_RANGE_FILE,
    model_package.OFFSETS_FILE,
)
_WRITTEN = (CONFIG, CARD, SUBJECTS, model_package.HEADS_FILE, model_package.HEAD_ARRAYS_FILE)
_LEFT = (model_package.BANK_FILE,)
_CARD = (
    *("intended_use", "limits", "prompts", "preprocessing", "grid", "objective", "eta"),
    *("data", "training", "source", "score"),
)


def adopt(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="Folder of the checkpoint, or OWNER/NAME@COMMIT of a hub."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Receives it; must not exist.")],
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Findings that it is asked for.")
    ] = Path(adoption.PROMPTS),
) -> int:
    """Make a model package of a public checkpoint: CLIP, SigLIP, open_clip, BioViL, CXR-CLIP.

    Then everything that takes a package takes it: serve, evaluate (`evaluate.model`), build_index,
    fit_head, calibrate_scores, export. Families, and what was tried: docs/training.md.
    """
    made = adoption.adopt(model, out, prompts)
    print(f"{out}: {made.summary['family']} {made.digest[:12]}; medclip serve {out}")
    return 0


def export(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Folder of a run or of a model, a config, or OWNER/NAME@COMMIT of a hub.",
        ),
    ],
    to: Annotated[Format, typer.Option(help="Who reads it.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Receives it; must not exist.")],
) -> int:
    """Write a run's model as transformers' own classes, or as ONNX graphs.

    The folder's README.md has the code that loads it. Digests of the model are checked first, the
    export is compared with the model, and a killed export leaves no folder. Printed is how far its
    answers are from ours.
    """
    model = fetch_weights(model, PACKAGE)
    if not model.is_dir():
        model = run_folder(model)
    if not (model / HEADER).is_file():
        model = ARTIFACT.at(model)
    written = export_formats(model, to, out)
    for part, difference in written.summary.items():
        print(f"{part:12} largest difference {difference:.2g}")
    print(f"how to load it: {out / 'README.md'}")
    return 0


def push(copy: Artifact, repo: str, *, private: bool) -> str:
    """Send an export to the hub, into a repository that may be new; gives the commit's address.

    ConfigError where the name is malformed, there is no token, the hub is switched off, or a
    private repository was meant and a public one is there; HubError where the hub cannot be
    reached, or refuses.
    """
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise ConfigError(f"--repo {repo!r} exists and is public; give --public to mean that")
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=copy.path,
            allow_patterns=[*copy.files, HEADER],
            commit_message=f"Model with digest {copy.digest[:12]}",
        )
    except (HFValidationError, LocalTokenNotFoundError) as error:
        raise ConfigError(
            f"--repo {repo!r} is not an OWNER/NAME, or there is no token; `hf auth login` keeps one"
        ) from error
    except ConfigError:
        raise
    except OfflineModeIsEnabled as error:
        raise ConfigError("HF_HUB_OFFLINE is set; unset it for this command") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise HubError(f"the hub refused with status {status}; may you write there?") from error
    except Exception as error:  # the client's HTTP library has errors of its own
        raise HubError("the hub cannot be reached; is the network up?") from error
    return str(commit.commit_url)


def push_model(
    config: ConfigFile,
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME")],
    overrides: Overrides = None,
    public: Annotated[bool, typer.Option("--public", help="A new repository is public.")] = False,
    allow_vocabulary: Annotated[
        bool, typer.Option("--allow-vocabulary", help="Word pieces learned from reports may go.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files, send nothing.")
    ] = False,
) -> int:
    """Put a published model on a model hub; no sentence and no patient goes with it.

    What leaves is a copy of the model: weights, configuration, tokenizer and its cards
    (`write_cards`), without the hashes of training patients and without folder names. The
    repository is private unless `--public` is given. `--dry-run` lists the files and sends
    nothing. The token is that of `hf auth login`, or `HF_TOKEN`; `HF_ENDPOINT` names another hub.

    What stays behind: the hashes of the training patients' ids (who knows how ids are formed can
    try them all), the encoded images of the bank (the offsets of the model's own prompts go along),
    and every setting but those of `TrainingConfig`, whose own places (folders, tables, hosts) are
    withheld. A vocabulary that was learned from the reports consists of pieces of them, so it is
    refused unless it is allowed.
    """
    loaded = config_of(config, overrides)
    work = resolve_path(loaded.work, loaded.work)
    model = open_artifact(model_package.ARTIFACT.at(work), model_package.ARTIFACT, verify=False)
    temporary = Path(tempfile.gettempdir())
    with disk_faults_named(temporary), tempfile.TemporaryDirectory() as folder:
        copy = export_model(
            model.path,
            cards_of(work, model),
            Path(folder) / "model",
            allow_vocabulary=allow_vocabulary,
        )
        for name in sorted([*copy.files, HEADER]):
            print(f"{(copy.path / name).stat().st_size:12}  {name}")
        address = "nothing was sent"
        if not dry_run:
            address = push(copy, repo, private=not public)
        print(address)
    return 0


def export_model(
    model: Path, cards: Artifact, folder: Path, *, allow_vocabulary: bool = False
) -> Artifact:
    """Copy a model package without what must not leave the institution.

    Args:
        model: folder of the package; every byte of it is checked.
        cards: its cards, from `cards_of`.
        folder: receives the copy; its parent exists.
        allow_vocabulary: whether word pieces that were learned from the reports may go.

    Returns:
        A model package like any other, except that it does not say whom it was trained on.

    CheckpointError where the model holds a file that is not known here, or its vocabulary was
    learned from the reports and that is not allowed.
    """
    package = model_package.read_model_package(model)
    source = open_artifact(model, ARTIFACT, verify=False)
    if strange := set(source.files).difference(_KEPT, _KEPT_IF_THERE, _WRITTEN, _LEFT):
        raise CheckpointError(
            f"the model holds {len(strange)} files that no model package has; package it again"
        )
    settings = read_training_config(package.path)
    learned = settings is not None and not (
        settings.model.text.pretrained or settings.language_model.pretrained
    )
    if learned and not allow_vocabulary:
        raise CheckpointError(
            "the vocabulary was learned from the training reports and consists of pieces of them, "
            "names among them where reports hold names; look through text/tokenizer.json, then "
            "give --allow-vocabulary"
        )
    copied = [*_KEPT, *(name for name in _KEPT_IF_THERE if name in source.files)]
    with write_artifact(
        folder, ARTIFACT, make_fingerprint(ARTIFACT, {}, {"model": source})
    ) as writer:
        (writer.directory / TEXT).mkdir(exist_ok=True)
        for name in copied:
            write_bytes(writer.directory / name, source.file(name).read_bytes())
        if heads := read_heads(model):
            write_heads(writer.directory, heads)
        card = {name: package.card[name] for name in _CARD if name in package.card}
        if settings and "objective" in card:  # of an earlier version, it may name a table
            card["objective"] = settings.objective.public_settings()
        write_text(
            writer.directory / CONFIG, json_text((settings or package.config).public_settings())
        )
        write_text(writer.directory / CARD, json_text(card))
        write_text(writer.directory / SUBJECTS, json_text(None))
        for name, output in (("README.md", MODEL_CARD), (DATA_CARD, DATA_CARD)):
            write_bytes(writer.directory / name, cards.file(output).read_bytes())
        return writer.commit({})
