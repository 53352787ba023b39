"""Write one self-contained HTML page about a run.

Reads every artifact that exists; writes `report.html` in the run's folder. Sections
appear where their artifact does.
"""

import sys

from medclip_dcl.data.ground_truth import CLASS_PROBABILITIES, truth_files
from medclip_dcl.errors import ArtifactMissing
from medclip_dcl.files import write_text
from medclip_dcl.likelihood.eta import read_given_table
from medclip_dcl.settings import resolve_path
from medclip_reporting.page import render_report
from medclip_reporting.sources import find_sources

from .job import Job, job_main
from .stages import REPORT


def build(job: Job) -> None:
    """Write the page; ArtifactMissing where there is nothing to report yet."""
    root = job.config.source.root
    is_generated = bool(root) and bool(truth_files(resolve_path(root, job.config.work)))
    rho = _true_shares(job) if is_generated else {}
    negatives = job.config.train.global_batch - 1
    sources = find_sources(job.work, job.config.report, is_generated, rho, negatives)
    if not sources.artifacts:
        raise ArtifactMissing(f"no artifact in {job.work}; run build_manifest first")
    page = render_report(sources)
    write_text(job.work / REPORT, page)
    job.say(
        report=str(job.work / REPORT),
        artifacts=len(sources.artifacts),
        megabytes=round(len(page.encode()) / 1e6, 2),
    )


def _true_shares(job: Job) -> dict[str, float]:
    """True class probability of every sentence that the generator can say."""
    path = resolve_path(job.config.source.root, job.config.work) / CLASS_PROBABILITIES
    return read_given_table(path) if path.is_file() else {}


main = job_main("write_report", build)

if __name__ == "__main__":
    sys.exit(main())
