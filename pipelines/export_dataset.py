"""Write the prepared studies as Parquet for `datasets.load_dataset`, with a data card.

Reads `manifest` and `prepared`, and `sentences` and `eta_cache` where they exist; writes
`dataset` into the config's folder and sends nothing anywhere. Studies are written shard by
shard, so a killed run resumes after the last whole shard.
"""

import sys
from typing import Any

from medclip_dcl.artifact_writer import ArtifactWriter
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import truth_files
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.files import write_text
from medclip_dcl.likelihood import eta
from medclip_dcl.settings import resolve_path
from medclip_dcl.text import sentences
from medclip_exports.dataset import ARTIFACT, HUB_SPLITS, STUDIES, export_dataset, parquet_name
from medclip_reporting.cards import DATA_KINDS, data_card, data_facts
from medclip_reporting.sources import find_sources

from .job import Job, job_main


def build(job: Job) -> None:
    """Export the studies."""
    needed = {kind.name: job.open(kind) for kind in (manifest.ARTIFACT, prepared.ARTIFACT)}
    root = job.config.source.root
    is_generated = bool(root) and bool(truth_files(resolve_path(root, job.config.work)))
    sources = find_sources(job.work, job.config.report, is_generated, {}, 0, DATA_KINDS)
    inputs = {**sources.artifacts, **needed}
    texts, etas = (inputs.get(kind.name) for kind in (sentences.ARTIFACT, eta.ARTIFACT))

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        summary = export_dataset(
            writer.directory,
            needed[manifest.ARTIFACT.name],
            PreparedImages(needed[prepared.ARTIFACT.name]),
            texts,
            etas,
        )
        files = {HUB_SPLITS[split]: parquet_name(split, "*") for split in summary["splits"]}
        card = data_card(data_facts(sources, job.config.card), files, STUDIES.columns)
        write_text(writer.directory / "README.md", card)
        return summary

    settings = {"terms": job.config.card.data, "is_generated": is_generated}
    job.make(ARTIFACT, settings, inputs, write)


main = job_main("export_dataset", build)

if __name__ == "__main__":
    sys.exit(main())
