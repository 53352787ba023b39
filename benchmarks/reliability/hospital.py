"""Answers as DICOM objects: time and size for a full-size radiograph, dirty and damaged headers.

Then the gateway's listener against Orthanc.

    python -m benchmarks.hospital [--quick]

The listener's figures need the Debian packages orthanc, orthanc-dicomweb and dcmtk.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.uid import ImplicitVRLittleEndian

from benchmarks.record import finish, is_quick, judge
from benchmarks.reliability.gateway import PRELOADED, Bench
from benchmarks.speed.timing import cpu_ms, interleaved
from medclip_dcl.data.dicom.header import separate
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import ImageError
from medclip_hospital.results import encode_results
from medclip_hospital.settings import Kind, ResultsConfig
from testing import forkserver, orthanc
from testing.dicom import dicom_bytes
from testing.hospital import (
    ANSWERED_AT,
    DIRTY_HEADERS,
    answer_of,
    as_expected,
    radiograph,
    results_of,
)

HEIGHT_PX, WIDTH_PX = 3056, 2544
ROUNDS = 7
KINDS: tuple[Kind, ...] = ("sr", "pr", "sc")
BARS = {"objects_cpu_ms": "<= 300", "objects_mib": "<= 4", "damaged_failures": "0"}
BARS |= {"listener_over_orthanc": ">= 0.5"}


def cpu_ms_of(work: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """The median CPU time of some work in this process, after once to warm up; and its result."""
    made = work()
    return cpu_ms(interleaved({"work": lambda _: work()}, rounds, warm_up=0), "work"), made


def measure_objects(rounds: int) -> dict[str, float]:
    """Milliseconds and MiB of what becomes of one full-size image."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 400, (HEIGHT_PX, WIDTH_PX))
    shape = 30000 + 20000 * np.sin(np.linspace(0, 9, WIDTH_PX)) + noise
    data = radiograph(
        shape.astype(np.uint16), bits_stored=16, WindowCenter="30000", WindowWidth="40000"
    )
    settings, answer = ImagesConfig(), answer_of(HEIGHT_PX, WIDTH_PX)
    with Decoder(settings, 1) as decoder:
        picture = decoder.open(data)
    separate_ms, separated = cpu_ms_of(lambda: separate(data, settings), rounds)
    figures = {"separate_cpu_ms": separate_ms, "objects_cpu_ms": separate_ms, "objects_mib": 0.0}
    for kind in KINDS:
        results = ResultsConfig(objects=(kind,))
        spent, (made,) = cpu_ms_of(
            lambda results=results: encode_results(
                separated.header, answer, picture, ANSWERED_AT, results
            ),
            rounds,
        )
        figures[f"{kind}_cpu_ms"], figures[f"{kind}_mib"] = spent, len(made.data) / 2**20
        figures["objects_cpu_ms"] += spent
        figures["objects_mib"] += len(made.data) / 2**20
    return figures


def count_failures(decoder: Decoder, files: int) -> dict[str, float]:
    """Damage headers byte by byte: each is refused with a code, or becomes objects."""
    rng = np.random.default_rng(0)
    whole = [
        radiograph(WindowCenter="2000", WindowWidth="800", PatientIdentityRemoved="YES"),
        radiograph(SpecificCharacterSet=["", "ISO 2022 IR 87"], PatientName="A^B=山田^太郎"),
        radiograph(photometric="MONOCHROME1", syntax=ImplicitVRLittleEndian),
    ]
    results = [ResultsConfig(objects=("pr", "sc")), ResultsConfig(objects=("sr",))]
    figures = {"damaged_headers": float(files), "damaged_refused": 0.0, "damaged_failures": 0.0}
    for number in range(files):
        data = bytearray(whole[number % 3])
        for at in rng.integers(132, 1000, rng.choice([1, 2, 4])):
            data[at] = rng.choice([0, 32, 48, 65, 92, 255])
        try:
            results_of(bytes(data), decoder, settings=results[number % 8 == 0])
        except ImageError:
            figures["damaged_refused"] += 1
        except Exception as error:  # noqa: BLE001 (whatever it is, it is counted and named)
            print(f"damaged header {number}: {type(error).__name__}")
            figures["damaged_failures"] += 1
    return figures


def compare_listeners(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Bytes a second that the gateway's listener makes durable, over those of Orthanc.

    dcmsend sends both `images` images of 14.8 MiB in turn, each round others. The gateway's process
    does nothing else: its images are refused by their view after the header was read.
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
                pixels = rng.integers(0, 4096, (HEIGHT_PX, WIDTH_PX)).astype(np.uint16)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    quick = is_quick(argv)
    figures = measure_objects(1 if quick else ROUNDS)
    with Decoder(ImagesConfig(), 1) as decoder:
        found = {name: as_expected(dirty, decoder) for name, dirty in DIRTY_HEADERS.items()}
        figures |= count_failures(decoder, 200 if quick else 2000)
    figures["headers_as_expected"] = sum(found.values())
    if missing := orthanc.missing():
        print(f"not installed: {missing}; the listener is not measured")
    else:
        forkserver.context(PRELOADED)
        with tempfile.TemporaryDirectory() as name:
            figures |= compare_listeners(Path(name) / "listener", *((1, 3) if quick else (5, 8)))
    for name in (name for name, met in found.items() if not met):
        print(f"not as expected: {name}")
    wanted = BARS | {"headers_as_expected": f"{len(found)} of {len(found)}"}
    return finish("hospital", figures, judge(figures, wanted))


if __name__ == "__main__":
    raise SystemExit(main())
