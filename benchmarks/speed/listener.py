"""Bytes a second that the gateway's listener makes durable, over those of Orthanc.

The same images go to both by DCMTK's dcmsend, in turn, each round others. The gateway's process
does nothing else: its images are refused by their view after the header was read.
"""

import os
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from benchmarks.fixtures import orthanc
from benchmarks.fixtures.dicom import dicom_bytes
from benchmarks.reliability.gateway import Bench

ROWS, COLUMNS = 3056, 2544


def compare(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Send `images` images of 14.8 MiB to both in each round, onto the disk that `folder` is on.

    Gives `listener_over_orthanc`, the median of the rounds, and MiB a second of both.
    """
    rng = np.random.default_rng(0)
    ratios, speeds = [], []
    with orthanc.running(folder / "pacs") as pacs, orthanc.stub_service() as service:
        bench = Bench(folder / "gateway", pacs, service)
        bench.start()
        for number in range(rounds):
            sent = folder / f"round{number}"
            sent.mkdir()
            for item in range(images):
                pixels = rng.integers(0, 4096, (ROWS, COLUMNS)).astype(np.uint16)
                base = f"1.2.826.0.1.3680043.10.2.{number}.{item}"
                tags = {"SOPInstanceUID": base, "StudyInstanceUID": f"{base}.1"}
                tags |= {"SeriesInstanceUID": f"{base}.2", "PatientID": base}
                image = dicom_bytes(pixels, ViewPosition="LL", **tags)
                (sent / f"{item}.dcm").write_bytes(image)
            os.sync()
            size = sum(path.stat().st_size for path in sent.iterdir()) / 2**20
            took = []
            for called, port in (("MEDCLIP", bench.port), ("ORTHANC", pacs.port)):
                begun = time.monotonic()
                words = ["--scan-directories", "--aetitle", "MODALITY", "--call", called]
                subprocess.run(
                    ["dcmsend", *words, "127.0.0.1", str(port), str(sent)],
                    check=True,
                    capture_output=True,
                )
                took.append(time.monotonic() - begun)
            ratios.append(took[1] / took[0])
            speeds.append([size / seconds for seconds in took])
        counts = bench.counts()
        bench.kill()
    assert sum(counts.values()) == rounds * images, counts
    ours, theirs = (statistics.median(column) for column in zip(*speeds, strict=True))
    return {
        "listener_over_orthanc": statistics.median(ratios),
        "listener_mib_s": ours,
        "orthanc_mib_s": theirs,
    }
