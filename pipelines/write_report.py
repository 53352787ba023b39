"""Write one self-contained HTML page about a run.

Reads every artifact that exists; writes `report.html` in the run's folder. Sections
appear where their artifact does.
"""

import sys
from pathlib import Path

from medclip_dcl.core.artifact import json_digest
from medclip_dcl.core.errors import ArtifactMissing
from medclip_dcl.core.files import sha256_file, write_text
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data.records import CLASS_PROBABILITIES, truth_files
from medclip_dcl.likelihood.eta import read_given_table
from medclip_dcl.training import checkpoint
from medclip_dcl.training.logging import FILE

from .job import Job, job_main
from .report.page import render_report
from .report.sources import Sources, find_sources
from .stages import REPORT

_LOG = f"{checkpoint.ARTIFACT.name}/{FILE}"  # not an artifact, and drawn too


def build(job: Job) -> None:
    """Write the page; ArtifactMissing where there is nothing to report yet."""
    root = job.config.source.root
    is_generated = bool(root) and bool(truth_files(resolve_path(root, job.config.work)))
    rho = _true_shares(job) if is_generated else {}
    negatives = job.config.train.global_batch - 1
    sources = find_sources(job.work, job.config.report, is_generated, rho, negatives)
    if not sources.artifacts:
        raise ArtifactMissing(f"no artifact in {job.work}; run build_manifest first")
    made_from, path = _made_from(job, sources), job.work / REPORT
    if not job.force and path.is_file() and path.read_bytes().endswith(made_from.encode()):
        job.say(artifact="report", state="reused", report=str(path))
        return
    page = render_report(sources) + made_from
    write_text(path, page)
    job.say(
        artifact="report",
        state="made",
        report=str(path),
        artifacts=len(sources.artifacts),
        megabytes=round(len(page.encode()) / 1e6, 2),
    )


def _made_from(job: Job, sources: Sources) -> str:
    # The page's last line: the same where the page would be the same.
    own = Path(__file__).parent / "report"
    code = [file for file in sorted(own.iterdir()) if file.is_file()]
    log = job.work / _LOG
    facts = {
        "artifacts": {name: [a.digest, a.origin] for name, a in sources.artifacts.items()},
        "report": job.config.report.model_dump(mode="json"),
        "work": str(job.work),
        "rho": [sources.is_generated, *sources.rho.items()],
        "negatives": sources.negatives,
        "files": {
            file.name: sha256_file(file) for file in [*code, *([log] if log.is_file() else [])]
        },
    }
    return f"<!-- made from {json_digest(facts)} -->\n"


def _true_shares(job: Job) -> dict[str, float]:
    """True class probability of every sentence that the generator can say."""
    path = resolve_path(job.config.source.root, job.config.work) / CLASS_PROBABILITIES
    return read_given_table(path) if path.is_file() else {}


main = job_main("write_report", build)

if __name__ == "__main__":
    sys.exit(main())
