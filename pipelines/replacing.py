"""A finished model, or its results, gives way to other settings only where that is said."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_dcl.core.artifact import ArtifactType, fingerprint_changes, read_artifact_header
from medclip_dcl.core.errors import ArtifactError, ArtifactStale

from .stages import STAGES

if TYPE_CHECKING:
    from .config import Config


def refuse_to_replace(config: "Config", work: Path, stages: Collection[str]) -> None:
    """Refuse a run that would replace a finished model or its results, before it does anything.

    Settings are compared with those that the artifacts in `work` were made with.

    Raises:
        ArtifactStale: they differ, and a model or results are there.
    """
    settings, changes = config.model_dump(mode="json"), {}
    for stage in stages:
        name = STAGES[stage].makes
        if name and name != "index":  # which is neither, and neither depends on it
            with suppress(ArtifactError):  # one that is not there, or damaged, is made in any case
                made = read_artifact_header(work / name).fingerprint["settings"]
                made = {"likelihood": made} if name == "likelihoods" else made
                changes[name] = list(_differences(made, settings))
    before = [line for name, lines in changes.items() if name != "results" for line in lines]
    reasons = {"model": before, "results": before + changes.get("results", [])}
    lost = [name for name, lines in reasons.items() if lines and name in changes]
    if lost:
        what = {"model": "a finished model", "results": "finished results"}
        _refuse(work, " and ".join(what[name] for name in lost), reasons[lost[-1]])


def refuse_other_model(work: Path, kind: ArtifactType, fingerprint: Mapping[str, Any]) -> None:
    """Refuse to train where a finished model of other settings or inputs would be replaced."""
    try:
        finished = read_artifact_header(kind.at(work))
    except ArtifactError:
        return
    if (finished.kind, finished.version) == (kind.name, kind.version):
        old, new = dict(finished.fingerprint), dict(fingerprint)
        inputs = [
            f"another {line.partition(':')[0]}"  # digests help nobody
            for line in fingerprint_changes(old.pop("inputs"), new.pop("inputs"))
        ]
        if changes := fingerprint_changes(old["settings"], new["settings"]) + inputs:
            _refuse(work, "a finished model", changes)


def _differences(
    made: Mapping[str, Any], settings: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    # `auto` was settled when the artifact was made.
    for name in [name for name in made if name in settings and settings[name] != "auto"]:
        old, new = made[name], settings[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{name}.")
        else:
            yield from fingerprint_changes({name: old}, {name: new}, prefix)


def _refuse(work: Path, what: str, changes: Collection[str]) -> None:
    raise ArtifactStale(
        f"{work} holds {what}, made with other settings or inputs ({'; '.join(changes)}), which "
        "this run would replace; give it a folder of its own (--set work=FOLDER), or add --replace"
    )
