"""The section about where everything came from."""

from typing import Any

from medclip_dcl.report.sources import KINDS, Sources

View = dict[str, Any]


def describe_provenance(sources: Sources) -> View:
    """List the artifacts with digest, age and cost, and the versions that made them.

    Args:
        sources: what the report is made from.

    Returns:
        `artifacts`, `packages`, `python`, `system` and the total of `seconds`. An artifact
        is `stale` where an input that it names is no longer the one beside it.
    """
    digests = {name: artifact.digest for name, artifact in sources.artifacts.items()}
    rows = []
    for kind in KINDS:
        artifact = sources.artifacts.get(kind.name)
        if artifact is None:
            continue
        inputs = artifact.recipe["inputs"]
        rows.append(
            {
                "kind": kind.name,
                "job": kind.job,
                "digest": artifact.digest,
                "sealed_at": artifact.origin["sealed_at"],
                "seconds": artifact.origin["seconds"],
                "megabytes": sum(file["bytes"] for file in artifact.files.values()) / 1e6,
                "stale": any(digests.get(name, made) != made for name, made in inputs.items()),
            }
        )
    origins = [artifact.origin for artifact in sources.artifacts.values()]
    newest = max(origins, key=lambda origin: str(origin["sealed_at"]), default=None)
    return {
        "artifacts": rows,
        "seconds": sum(row["seconds"] for row in rows),
        "packages": {} if newest is None else newest["packages"],
        "python": "" if newest is None else newest["python"],
        "system": "" if newest is None else f"{newest['system']} {newest['machine']}",
        "sealed_at": "" if newest is None else newest["sealed_at"],
    }
