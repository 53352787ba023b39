"""Canaries in headers, file names, tables and reports: do they turn up where they must not?

    python -m benchmarks.reliability.privacy [--quick] [--strict]

A small generated archive is spoilt with words that no image or report holds by nature. Then
every job of the story, the check and the broken sources run as processes of their own, and
everything that they wrote is searched: logs, errors, artifacts (tables decoded), pages. Images
with canaries also go through the gateway: its log, metrics and status are searched, and what it
sent to the service.

    PHISENTINEL    in DICOM headers, preambles, names of files, cells of tables, broken
                   reports: may stand nowhere
    PHISENTWORD    in the text of sound reports: may stand where the contract keeps texts, and
                   in no log, no error and no page written with `report.private`

`--strict` ends with 1 where a bar is missed. One tier: seconds of CPU, most of them imports.
"""

import argparse
import contextlib
import gzip
import importlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as Items

from benchmarks.fixtures.orthanc import radiograph, send, stub_service, wait_until
from benchmarks.record import finish
from gateway.destinations import SendError
from gateway.launcher import started
from gateway.monitoring import silence_libraries
from gateway.settings import GatewaySettings
from medclip_dcl.config import load_config

HEADER, WORD = "PHISENTINEL", "PHISENTWORD"
_SHORTEST = 8
"""Letters of a canary that tell it; a vocabulary may hold it in pieces."""
CONFIG = "configs/demo.yaml"
SMALL = (
    "generate.patients=40",
    "generate.coverage_images=1",
    "generate.size_px=64",
    "generate.test_share=0.2",
    "generate.workers=1",
    "source.max_reject_share=0.9",
    "images.max_reject_share=0.9",
    "images.workers=1",
    "images.size_px=64",
    "model.image.input_px=56",
    "language_model.steps=2",
    "likelihood.workers=1",
    "train.steps=4",
    "train.global_batch=8",
    "train.warmup_steps=1",
    "train.save_every_steps=2",
    "evaluate.retrieval_pool=8",
    "evaluate.bootstrap=4",
)
TEXT_PLACES = (
    "manifest/reports.parquet",
    "manifest/boxes.parquet",
    "sentences/sentences.parquet",
    "index/texts.parquet",
    "results/gallery.parquet",
    "service_answers.json",
    "report.html",
    "language_model/",
    "model/",
)
"""Where texts of reports may stand; the last two hold a vocabulary learned from them."""
NAMES_PLACE = "folder/manifest/images.parquet"
"""Where names of files may stand, in column `path`: how a folder's images are found again."""

_TAGS = {
    "PatientName": f"{HEADER}^DOE",
    "PatientID": f"{HEADER}1",
    "OtherPatientIDs": f"{HEADER}2",
    "PatientAddress": HEADER,
    "PatientComments": HEADER,
    "AccessionNumber": HEADER,
    "InstitutionName": HEADER,
    "InstitutionAddress": HEADER,
    "ReferringPhysicianName": f"{HEADER}^A",
    "OperatorsName": f"{HEADER}^B",
    "StationName": HEADER,
    "StudyDescription": HEADER,
    "SeriesDescription": HEADER,
    "ProtocolName": HEADER,
    "ImageComments": HEADER,
    "DerivationDescription": HEADER,
    "StudyID": HEADER,
    "DeviceSerialNumber": HEADER,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Spoil an archive, run everything on it, and search what came out.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0; 1 where a job ended otherwise than it should, or with `--strict` where a canary
        was found.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.privacy")
    parser.add_argument("--quick", action="store_true", help="the same; there is one tier")
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args(argv)
    begun = time.monotonic()
    story = load_config(Path(CONFIG)).jobs
    for name in (*story, "check_data"):  # once, for all the processes that are forked below
        importlib.import_module(f"pipelines.{name}")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        figures = _run_everything(base, story) | gateway(base)
        found = search(base)
        for name, indices in found.items():
            print(f"{name:18}{len(indices):4}  {', '.join(indices[:6])}")
    figures |= {name: len(indices) for name, indices in found.items()}
    figures["seconds"] = time.monotonic() - begun
    bars = {
        name: (bar, met)
        for name, bar, met in (
            ("header_leaks", "0", not found["header_leaks"]),
            ("text_leaks", "0", not found["text_leaks"]),
            ("texts_kept", ">= 1", bool(found["texts_kept"])),
            ("burned_in", ">= 1", figures["burned_in"] >= 1),
            ("objects_named", ">= 1", figures["objects_named"] >= 1),
            ("spool_left", "0", not figures["spool_left"]),
        )
    }
    finish("privacy", figures, bars)
    unmet = arguments.strict and not all(met for _, met in bars.values())
    return int(unmet or figures["wrong_ends"] > 0)


def _run_everything(base: Path, story: Sequence[str]) -> dict[str, float]:
    """Run the story, the check and the broken sources; count jobs, ends and rejects."""
    work, logs = base / "out/work", base / "out/logs"
    logs.mkdir(parents=True)
    studies = f"generate.root={base / 'studies'}"
    root = f"source.root={base / 'studies'}"
    ends: list[bool] = []

    def job(
        name: str, expected: int, *settings: str, log: str = "", config_file: str = CONFIG
    ) -> None:
        words = (f"work={work}", studies, root, *SMALL, *settings)
        code = run_apart(name, config_file, words, logs / f"{log or name}.log")
        ends.append(code == expected)
        if code != expected:
            print(f"{log or name} ended with {code}, not {expected}:")
            print((logs / f"{log or name}.log").read_text(errors="replace")[-2000:])

    job(story[0], 0)
    planted = spoil(base / "studies")
    job("build_manifest", 3, "source.max_reject_share=0", log="too_many_rejects")
    job("check_data", 3, "check.max_unusable_share=0")
    for name in story[1:-1]:
        job(name, 0)
    job(
        "prepare_images", 3, "images.max_reject_share=0", "images.size_px=48", log="too_many_images"
    )
    job(story[-1], 0, "report.private=true", log="private_report")
    (work / "report.html").rename(work / "private.html")
    job(story[-1], 0)
    for kind, config_file in broken_sources(base).items():
        job(
            "build_manifest",
            3,
            f"work={base / 'out' / kind}",
            log=kind,
            config_file=str(config_file),
        )
    job("build_manifest", 0, f"work={base / 'out/folder'}", "source.kind=dicom", log="folder")
    burned = pq.read_table(work / "prepared/rejects.parquet").to_pylist()
    return {
        "jobs": len(ends),
        "wrong_ends": ends.count(False),
        "planted": planted,
        "burned_in": sum(row["reason"] == "burned_in" for row in burned),
    }


def gateway(base: Path) -> dict[str, float]:
    """Send spoilt images through the gateway; keep what it said and what the service was sent.

    Args:
        base: folder with `out` below it.

    Returns:
        Objects that were stored, each with the patient's name, and files left in the spool.
    """
    out, stored = base / "out/gateway", []
    out.mkdir()
    images = {
        "answered": {},
        "refused": {"ViewPosition": "LL"},
        "nameless": {"StudyInstanceUID": HEADER},
    }
    files = []
    for number, (name, tags) in enumerate(images.items()):
        path = base / f"{name}.dcm"
        path.write_bytes(radiograph(number, **tags))
        _spoil_image(path, burned_in=False)
        files.append(path.read_bytes())

    class Pacs:
        def send(self, objects: Mapping[str, Path]) -> Sequence[str]:
            stored.extend(path.read_bytes() for path in objects.values())
            if len(stored) == len(objects):
                raise SendError("unreachable")  # once
            return list(objects)

    silence_libraries()
    with (
        (out / "log").open("w") as log,
        contextlib.redirect_stderr(log),
        stub_service() as service,
    ):
        tree = {"port": 0, "metrics_port": 0, "callers": {"MODALITY": ["127.0.0.1"]}}
        tree |= {"service": service.url, "spool": base / "spool", "keep_hours": 0}
        tree["destination"] = {"kind": "dicomweb", "url": "http://127.0.0.1:9"}
        settings = GatewaySettings.model_validate(tree)
        with started(settings, Pacs()) as running:
            send(running.port, files)
            with contextlib.suppress(ConnectionRefusedError):
                send(running.port, files, calling=HEADER)
            wait_until(lambda: running.journal.counts()["refused"] == len(files) - 1)
            wait_until(lambda: running.journal.counts()["done"] == 1)
            for page in ("metrics", "health"):
                text = httpx.get(f"http://127.0.0.1:{running.metrics_port}/{page}").text
                (out / page).write_text(text)
            (out / "status").write_text(str(running.journal.troubles()))
            running.tidy()
        (out / "sent_to_service").write_bytes(b"".join(service.bodies))
    left = sum(
        path.is_file()
        for folder in ("images", "objects", "incoming")
        for path in (base / "spool" / folder).rglob("*")
    )
    named = sum(HEADER.encode() in data for data in stored)
    return {"objects_named": named, "spool_left": left}


def run_apart(name: str, config_file: str, settings: Sequence[str], log: Path) -> int:
    """Run a job in a forked process whose output goes to a file.

    Args:
        name: its name.
        config_file: path of the recipe.
        settings: overrides.
        log: file that receives both of its streams.

    Returns:
        Its exit code.
    """
    options = [word for setting in settings for word in ("--set", setting)]
    main_of: Callable[[list[str]], int] = importlib.import_module(f"pipelines.{name}").main
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with log.open("wb") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            code = main_of(["--config", config_file, *options])
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:  # noqa: BLE001 (whatever it is, its trace is searched too)
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def spoil(root: Path) -> int:
    """Put canaries wherever a hospital's archive might hold something that must not travel.

    Args:
        root: a generated tree.

    Returns:
        Places that were spoilt.
    """
    images, reports = sorted(root.rglob("*.dcm")), sorted(root.rglob("s*.txt"))
    rng = random.Random(0)
    for number, path in enumerate(images):
        _spoil_image(path, burned_in=number % 5 == 3)
    images[5].write_bytes(images[5].read_bytes()[:-700])
    images[6].write_bytes(f"version https://git-lfs.github.com/spec/v1\noid {HEADER}\n".encode())
    images[7].write_bytes(b"\0" * 128 + b"DICM" + HEADER.encode() * 50)
    for path in rng.sample(reports, len(reports) // 3):
        text = path.read_text(encoding="utf-8").rstrip()
        path.write_text(f"{text} {WORD} nodule is seen on the left.\n", encoding="utf-8")
    reports[0].write_bytes(f" FINDINGS: {HEADER} caf".encode() + b"\xe9\n")
    reports[1].write_text(f" TECHNIQUE: {HEADER}\n", encoding="utf-8")
    reports[2].write_text(f"version https://git-lfs.github.com/spec/v1\noid {HEADER}\n")
    for name in (f"{HEADER}^DOE.txt", f"{HEADER}.dcm", f"files/p10/{HEADER}.dcm"):
        (root / name).write_bytes(images[0].read_bytes())
    for path in root.glob("*-metadata.csv.gz"):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        blank = "," * (lines[0].count(",") - 4)
        lines = [f"{lines[0]},note", *(f"{line},{HEADER}" for line in lines[1:])]
        lines += [f"{HEADER} DOE,10000000,50000000,AP,PA{blank},", f"x,{HEADER}/..,5,AP,PA{blank},"]
        path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    for path in root.glob("MS_CXR*.csv"):
        lines = path.read_text(encoding="utf-8").splitlines()
        lines = [f"{lines[0]},rater", *(f"{line},{HEADER}" for line in lines[1:])]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(images) * (len(_TAGS) + 4) + len(reports) // 3 + 10


def _spoil_image(path: Path, *, burned_in: bool) -> None:
    data = dcmread(path)
    for keyword, value in _TAGS.items():
        setattr(data, keyword, value)
    step = Dataset()
    step.RequestedProcedureDescription = HEADER
    data.RequestAttributesSequence = Items([step])
    data.private_block(0x0009, HEADER, create=True).add_new(1, "LO", HEADER)
    data.preamble = (HEADER.encode() * 12)[:128]
    data.file_meta.SourceApplicationEntityTitle = HEADER
    if burned_in:
        data.BurnedInAnnotation = "YES"
    data.save_as(path)


def broken_sources(base: Path) -> dict[str, Path]:
    """Write sources whose tables and reports cannot be read, with canaries in what is wrong.

    Args:
        base: folder that receives them.

    Returns:
        Name -> config; the manifest of each ends with exit code 3.
    """
    tables = {
        "split": f"id,text,fold\np1,{HEADER},{HEADER}\n",
        "empty": f"id,text,file\n,{HEADER},{HEADER}.png\np2,,../{HEADER}.png\n",
        "columns": f"id,{HEADER}\np1,{HEADER}\n",
        "ragged": f"id,text\np1,{HEADER},{HEADER},{HEADER}\n",
        "boxes": "id,text,fold\np1,Clear.,train\n",
    }
    recipes = {}
    for name, text in tables.items():
        folder = base / "broken" / name
        folder.mkdir(parents=True)
        (folder / "t.csv").write_text(text, encoding="utf-8")
        (folder / "b.json").write_text(f'{{"images": "{HEADER}"', encoding="utf-8")
        columns = {"subject_id": "id", "report": "text"}
        columns |= {"split": "fold"} if name in {"split", "boxes"} else {}
        columns |= {"path": "file"} if name == "empty" else {}
        boxes = "b.json" if name == "boxes" else ""
        source = (
            f"kind: table, root: '{folder}', table: t.csv, boxes: '{boxes}', columns: {columns}"
        )
        recipes[name] = _recipe(folder, source)
    xml = base / "broken/open_i/ecgen-radiology"
    xml.mkdir(parents=True)
    (xml / "1.xml").write_text(f"<eCitation><uId id='{HEADER}'>{HEADER}", encoding="utf-8")
    (xml / f"{HEADER}.xml").write_text(f"<a>{HEADER}</a>", encoding="utf-8")
    recipes["open_i"] = _recipe(xml.parent, f"kind: open_i, root: '{xml.parent}'")
    return recipes


def _recipe(folder: Path, source: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(f"work: {folder}\nsource: {{{source}}}\n", encoding="utf-8")
    return path


def search(base: Path) -> dict[str, list[str]]:
    """Find canaries in everything that was written.

    Args:
        base: folder with `out` below it.

    Returns:
        `header_leaks`, `text_leaks`, and `texts_kept` where texts belong -> places.
    """
    found: dict[str, list[str]] = {"header_leaks": [], "text_leaks": [], "texts_kept": []}
    header, word = HEADER[:_SHORTEST].lower(), WORD[:_SHORTEST].lower()
    searched = 0
    for path in sorted(item for item in (base / "out").rglob("*") if item.is_file()):
        relative = path.relative_to(base / "out").as_posix()
        content = f"{relative}\n{readable(path)}".lower()
        if relative == NAMES_PLACE:
            content = str(pq.read_table(path).drop_columns(["path"]).to_pylist()).lower()
        searched += 1
        if header in content:
            found["header_leaks"].append(relative)
        if word in content:
            here = relative.removeprefix("work/")
            kept = any(here.startswith(allowed) for allowed in TEXT_PLACES)
            found["texts_kept" if kept else "text_leaks"].append(relative)
    print(f"{searched} files searched")
    return found


def readable(path: Path) -> str:
    """Give the content of a file as text, tables decoded.

    Args:
        path: any file.

    Returns:
        Its bytes as Latin-1, and after them every cell of it where it is a table.
    """
    text = path.read_bytes().decode("latin-1")
    if path.suffix == ".parquet":
        return text + str(pq.read_table(path).to_pylist())
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as stream:
            table = pa.ipc.open_file(stream).read_all()
        return text + str(table.schema) + str(table.to_pylist())
    return text


if __name__ == "__main__":
    sys.exit(main())
