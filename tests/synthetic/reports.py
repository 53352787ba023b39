"""A manifest of a few dozen reports, in all three splits, for the text jobs."""

from pathlib import Path

from medclip_dcl.artifact import Artifact, make_fingerprint, write_artifact
from medclip_dcl.data import manifest
from medclip_dcl.tables import write_table

_FINDINGS = (
    "The lungs are clear. No pleural effusion or pneumothorax.",
    "Small left pleural\n effusion. The heart is enlarged.",
    "Stable cardiomegaly with mild vascular congestion. 1. . Normal chest.",
    "No focal consolidation, effusion,\n or pneumothorax. The lungs are clear.",
    "Right lower lobe opacity may be pneumonia. Dr. ___ was told at 3:15 p.m. today.",
)
_IMPRESSIONS = ("No acute process is seen.", "", "Clear lungs.", "Findings suggest mild edema.")
_SPLITS = ("train", "train", "train", "validate", "test")


def write_reports(work: Path, reports: int = 60, subject: str = "p") -> Artifact:
    """Write the manifest's reports; the rest of a manifest is left out."""
    rows = [
        {
            "study_id": f"s{number:04d}",
            "subject_id": f"{subject}{number:04d}",
            "split": _SPLITS[number % 7 % 5],
            "findings": _FINDINGS[number % 5] + f" Line number {number % 11} is in place.",
            "impression": _IMPRESSIONS[number % 4],
            "last_paragraph": "",
        }
        for number in range(reports)
    ]
    rows.append({**rows[0], "study_id": "s9998", "findings": "", "impression": ""})
    rows[-1]["last_paragraph"] = "There is no change since yesterday."
    rows.append({**rows[0], "study_id": "s9999", "findings": "", "impression": "Normal."})
    work.mkdir(parents=True, exist_ok=True)
    fingerprint = make_fingerprint(manifest.ARTIFACT, {"reports": reports, "subject": subject}, {})
    with write_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT, fingerprint) as writer:
        write_table(writer.directory, manifest.REPORTS, rows)
        return writer.commit({})
