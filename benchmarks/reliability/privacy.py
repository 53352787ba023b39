"""Canaries in headers, file names, tables and reports: do they turn up where they must not?

    python -m benchmarks.privacy [--strict] [--keep FOLDER]

A small generated archive is spoilt with words that no image or report holds by nature, in every
text element of DICOM's dictionary. Then every command of `medclip` runs on it, sources of each kind
are read, and images go through the service. Everything that was written is searched in every
encoding, inside of containers: logs, errors, artifacts, pages, exports, caches, temporary files.
`python -m hospital.benchmark` has the gateway's part.

    PHISENTINEL    and its Chinese neighbour: in DICOM headers, names of files and folders, cells of
                   tables, broken reports, the service's key
    PHISENTWORD    in the text of sound reports, and in what the service is asked

`ALLOWED` lists where each may stand, and why. `--strict` ends with 1 where a bar is missed.
"""

import argparse
import contextlib
import csv
import gzip
import io
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, PngImagePlugin

from benchmarks.record import finish, judge
from hospital.tests.support.orthanc import radiograph, wait_until
from pipelines.__main__ import COMMANDS
from pipelines.config import load_config
from pipelines.stages import LISTED
from tests.support import forkserver
from tests.support.canaries import (
    HEADER,
    NATIVE,
    READ_TAGS,
    SLICES,
    UNREAD_TAGS,
    WORD,
    search,
    spoil_header,
    spoil_tag,
)
from tests.support.corpus import TINY_DEMO
from tests.support.processes import free_port
from tests.support.processes import options as as_options
from tests.support.public_checkpoints import PROCESSORS, write_pair

CONFIG = "configs/demo.yaml"
_TEXTS = "report texts are what this artifact is for"
_VOCABULARY = "word pieces learned from reports"
_ANSWER = "the answer that was asked for"
ALLOWED: dict[str, dict[str, str]] = {
    "text": {
        "*/manifest/reports.parquet:*": _TEXTS,
        "*/manifest/boxes.parquet:*": _TEXTS,
        "*/sentences/sentences.parquet:*": _TEXTS,
        "*/index/texts.parquet:text": _TEXTS,
        "*/dataset/*.parquet:*": _TEXTS,
        "*/rows/*:*": _TEXTS,
        "work/report.html": "a page that is not private",
        "work/preflight.html": "twenty reports as they are read, for their owner alone to look at",
        "*/language_model/tokenizer.json": _VOCABULARY,
        "*/model/text/tokenizer.json": _VOCABULARY,
        "exported/*/tokenizer.json": _VOCABULARY,
        "asked/*": _ANSWER,
    },
    "header": {
        "*/manifest/images.parquet:path": "how images are found again",
        "*/rows/*": "a copy of a dataset's own images, as they are",
    },
}
"""Kind of canary -> places where it may stand -> why."""
_NONE = ("header_leaks", "text_leaks", "commands_not_run", "wrong_ends")
_SOME = ("header_kept", "text_kept", "burned_in")
BARS = dict.fromkeys(_SOME, ">= 1") | dict.fromkeys(_NONE, "0")


def main(argv: Sequence[str] | None = None) -> int:
    """Spoil an archive, run everything on it, and search what came out.

    1 where a bar is missed, with `--strict`.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.privacy")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--keep", type=Path, help="an empty folder that keeps everything")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        base = arguments.keep.absolute() if arguments.keep else Path(folder)
        commands = Commands(base)
        figures = _run_everything(commands)
        found = search(base / "out", ALLOWED)
        files = sum(path.is_file() for path in (base / "out").rglob("*"))
    for name, places in found.items():
        print(f"{name:14}{len(places):4}  {', '.join(places[: 60 if 'leaks' in name else 3])}")
    figures |= {name: len(places) for name, places in found.items()}
    figures["files_searched"] = files
    not_run = {name for panel in COMMANDS.values() for name in panel} - commands.ran
    print("commands that were not run:", *sorted(not_run))
    figures |= {"commands": len(commands.ran), "commands_not_run": len(not_run)}
    figures["wrong_ends"] = len(commands.wrong)
    return finish("privacy", figures, judge(figures, BARS), strict=arguments.strict)


class Commands:
    """Runs commands in forked processes whose output goes to files."""

    def __init__(self, base: Path) -> None:
        self.base, self.out = base, base / "out"
        self.ran: set[str] = set()
        self.wrong: list[str] = []
        for name in ("home", "tmp", "logs", "asked"):
            (self.out / name).mkdir(parents=True, exist_ok=True)
        self.environment = {"HOME": str(self.out / "home"), "TMPDIR": str(self.out / "tmp")}
        self.environment |= {"XDG_CACHE_HOME": str(self.out / "home/cache"), "COLUMNS": "200"}

    def start(self, words: Sequence[str], log: Path, **environment: str) -> ForkServerProcess:
        """Start a command in a process of its own."""
        self.ran.add(words[0])
        return forkserver.start(
            "pipelines.__main__",
            words,
            log,
            environment={**self.environment, **environment},
            before=("benchmarks.reliability.privacy:forget_environment", ()),
        )

    def run(self, *words: str, expected: int = 0, log: str = "", **environment: str) -> None:
        """Run a command to its end; a wrong one is printed and counted."""
        path = self.out / (log or f"logs/{words[0]}.log")
        process = self.start(words, path, **environment)
        process.join()
        said = path.read_text(errors="replace")
        if process.exitcode != expected or "Traceback (most recent call last)" in said:
            self.wrong.append(log or words[0])
            print(f"{log or words[0]} ended with {process.exitcode}, not {expected}:")
            print(said[-2000:], flush=True)


def forget_environment() -> None:
    """Forget what libraries read from the environment before; called in the process itself."""
    tempfile.tempdir = None
    forkserver.forget("huggingface_hub")


def _run_everything(commands: Commands) -> dict[str, float]:
    """Run every command of the CLI but the gateway's; count plants and rejects."""
    base = commands.base
    story = load_config(Path(CONFIG)).jobs
    jobs = ("check_data", "pretrain_images", *story)
    forkserver.context(
        ["pipelines.__main__", *(f"pipelines.{LISTED[name].module}" for name in jobs)]
    )
    run, out = commands.run, commands.out
    work = out / "work"
    # So many patients that a label has images of both classes for the heads.
    roots = (f"work={work}", f"source.root={base / 'studies'}", "generate.patients=150")

    def options(*settings: str, config_file: str = CONFIG) -> list[str]:
        words = (*TINY_DEMO, *roots, *settings) if config_file == CONFIG else settings
        return ["--config", config_file, *as_options(words)]

    def refused(name: str, log: str, *settings: str, config_file: str = CONFIG) -> None:
        words = options(*settings, config_file=config_file)
        run(name, *words, expected=3, log=f"logs/{log}.log")

    run(story[0], *options())
    planted = spoil(base / "studies")
    refused("build_manifest", "too_many_rejects", "source.max_reject_share=0")
    refused("check_data", "check", "source.max_reject_share=0")
    # a sweep would draw the spoilt studies again
    quick = ("pretrain.steps=2",)
    shared = options(f"jobs={json.dumps(story[1:])}", *quick)
    for name in (*story[1:-1], "pretrain_images"):
        run(name, *shared)
    refused("prepare_images", "too_many_images", "source.max_reject_share=0", "images.size_px=48")
    run(story[-1], *options("report.private=true"), log="logs/private_report.log")
    (work / "report.html").rename(work / "private.html")
    _run_tools(commands, work, shared)
    _ask_the_service(commands, work)
    run("fit_head", *shared)
    for kind, config_file in broken_sources(base).items():
        own = f"work={out / kind}"
        refused("build_manifest", kind, own, config_file=str(config_file))
    for name, settings in sound_sources(base).items():
        for stage in ("build_manifest", "prepare_images", "split_sentences"):
            if (name, stage) != ("folder", "split_sentences"):
                own = options(f"work={out / name}", *settings)
                run(stage, *own, log=f"logs/{name}_{stage}.log")
    rejects = pq.read_table(work / "prepared/rejects.parquet").to_pylist()
    return {"planted": planted, "burned_in": sum(row["reason"] == "burned_in" for row in rejects)}


def _run_tools(commands: Commands, work: Path, shared: Sequence[str]) -> None:
    run, out = commands.run, commands.out
    grid = commands.base / "little.yaml"
    grid.write_text("axes: {train.learning_rate: [0.001]}\nseeds: [0]\n")
    run("plan", *shared, "--seconds", "0")
    run("sweep", *shared, "--grid", str(grid))
    (other,) = (path.parent for path in (work / "sweeps").rglob("results"))
    run("compare", str(work), str(other), "--json", str(out / "compare.json"))
    for form in ("transformers", "onnx"):
        target = str(out / "exported" / form)
        run("export", str(work), "--to", form, "--out", target, log=f"logs/export_{form}.log")
    run("push_model", *shared, "--repo", "someone/images", "--dry-run", "--allow-vocabulary")
    run("run", *shared[1:2], *shared[2:], "--set", 'jobs=["write_report"]')
    run("demo", *shared[2:], "--set", 'jobs=["write_report"]')
    run("show", str(work), "--no-open")
    run("show", str(work), "--verify")
    run("--schema")
    write_pair(commands.base / "clip", "clip", PROCESSORS["clip"])
    run("adopt", str(commands.base / "clip"), "--out", str(out / "adopted"))
    _run_on_own_files(commands)


def _run_on_own_files(commands: Commands) -> None:
    run, out = commands.run, commands.out
    image = next((commands.base / "studies").rglob("*.dcm"))
    table = commands.base / "own.csv"
    table.write_text(f"file,patient,report\n{image},{HEADER},{WORD} is seen on the left side.\n")
    run("init", str(table), "--out", str(out / "own.yaml"))


def _ask_the_service(commands: Commands, work: Path) -> None:
    run, out, base = commands.run, commands.out, commands.base
    key = base / "key"
    key.write_text(f"{HEADER * 4}\n")
    key.chmod(0o600)
    port = free_port()
    tree = {"model": str(work / "model"), "index": str(work / "index"), "port": port}
    (base / "serve.yaml").write_text(json.dumps(tree | {"key_file": str(key), "watch_s": 0}))
    url = f"http://127.0.0.1:{port}"
    image = base / f"{HEADER}.dcm"
    image.write_bytes(radiograph(7))
    spoil_header(image, 7)
    service = commands.start(["serve", "--config", str(base / "serve.yaml")], out / "logs/serve")
    headers = {"Authorization": f"Bearer {HEADER * 4}"}
    with httpx.Client(base_url=url, trust_env=False, headers=headers) as client:

        def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return client.get("/ready").status_code == httpx.codes.OK
            return False

        wait_until(ready, 240)
        where = ("--url", url, "--key-file", str(key))
        questions = {
            "classify": (str(image), "--explain"),
            "embed": (str(image),),
            "ground": (str(image), f"{WORD} on the left"),
            "retrieve": ("--target", "image", "--text", f"{WORD} nodule"),
        }
        for name, words in questions.items():
            run("ask", name, *words, *where, log=f"asked/{name}.json")
        run("ask", "ground", str(base / f"no {HEADER}"), WORD, *where, expected=1)
        texts = [f"{HEADER}{WORD}" * 100, "\0", ""]
        answers = [client.get(f"/{HEADER}?{HEADER}={WORD}"), client.get("/metrics")]
        answers += [client.post("/v1/retrieve", json={HEADER: text, WORD: text}) for text in texts]
        files = {"image": (f"{HEADER}.dcm", b"DICM" + HEADER.encode() * 99, HEADER)}
        for route in ("classify", "ground", "retrieve", "health"):
            data = {"phrases": f"{WORD}" * 300, HEADER: WORD, "k": HEADER}
            answers.append(client.post(f"/v1/{route}", files=files, data=data))
    pages = [f"{answer.status_code} {dict(answer.headers)} {answer.text}" for answer in answers]
    (out / "service_pages").write_text("\n".join(pages))
    service.terminate()
    service.join()


def spoil(root: Path) -> int:
    """Put canaries wherever a hospital's archive might hold what must not travel; counts them."""
    images, reports = sorted(root.rglob("*.dcm")), sorted(root.rglob("s*.txt"))
    rng = random.Random(0)
    for number, path in enumerate(images):
        spoil_header(path, number, burned_in=number % 5 == 3)
    for path, tag in zip(images[10:], READ_TAGS, strict=False):
        spoil_tag(path, tag)
    images[5].write_bytes(images[5].read_bytes()[:-700])
    images[6].write_bytes(f"version https://git-lfs.github.com/spec/v1\noid {HEADER}\n".encode())
    images[7].write_bytes(b"\0" * 128 + b"DICM" + HEADER.encode() * 50)
    for path in rng.sample(reports, len(reports) // 3):
        text = path.read_text(encoding="utf-8").rstrip()
        path.write_text(f"{text} {WORD} nodule is seen on the left.\n", encoding="utf-8")
    reports[0].write_bytes(f" FINDINGS: {HEADER} caf".encode() + b"\xe9\n")
    reports[1].write_text(f" TECHNIQUE: {HEADER}\n", encoding="utf-8")
    reports[2].write_text(f"version https://git-lfs.github.com/spec/v1\noid {HEADER}\n")
    names = (f"{HEADER}^DOE.txt", f"{HEADER}.dcm", f"files/p10/{HEADER}.dcm")
    for name in (*names, f"{HEADER} {NATIVE}/p10/a.dcm", f"files/{NATIVE}.txt"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_bytes(images[0].read_bytes())
    for path in root.glob("*-metadata.csv.gz"):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        blank = "," * (lines[0].count(",") - 4)
        lines = [f"{lines[0]},note", *(f"{line},{HEADER} {NATIVE}" for line in lines[1:])]
        lines += [f"{HEADER} DOE,10000000,50000000,AP,PA{blank},", f"x,{HEADER}/..,5,AP,PA{blank},"]
        path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    for path in root.glob("MS_CXR*.csv"):
        lines = path.read_text(encoding="utf-8").splitlines()
        lines = [f"{lines[0]},rater", *(f"{line},{HEADER}" for line in lines[1:])]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(images) * (len(UNREAD_TAGS) // SLICES + 24) + len(READ_TAGS) + len(reports) // 3 + 12


def sound_sources(base: Path) -> dict[str, tuple[str, ...]]:
    """Write a sound source of every other kind, canaries in all that is not mapped.

    Gives its settings by name. `dicomweb` needs an archive.
    """
    folder = base / f"{HEADER} {NATIVE}"
    (folder / "data").mkdir(parents=True)
    rows = []
    for number in range(6):
        notes = PngImagePlugin.PngInfo()
        notes.add_text(HEADER, f"{HEADER} {NATIVE}")
        notes.add_itxt("Comment", HEADER, zip=True)
        picture = io.BytesIO()
        pixels = Image.effect_noise((80, 90), 60 + number)
        pixels.save(picture, "PNG", pnginfo=notes)
        name = f"{HEADER}{number}.png"
        (folder / name).write_bytes(picture.getvalue())
        text = f"FINDINGS: {WORD} nodule number {number} on the left. The heart is enlarged."
        row = {"who": f"p{number}", "text": text, "file": name, "note": f"{HEADER} {NATIVE}"}
        rows.append(row | {"image": {"bytes": picture.getvalue(), "path": name}})
    with (folder / "t.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["who", "text", "file", "note"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), folder / "data/train-00000-of-00001.parquet")
    columns = '"subject_id": "who", "report": "text", '
    hub = (f"source.root={folder / 'data'}", "source.kind=huggingface", "source.boxes=")
    hub += ("source.columns={" + columns + '"image": "image"}', "source.test_share=0.3")
    table = (f"source.root={folder}", "source.kind=table", "source.table=t.csv", "source.boxes=")
    return {
        "folder": ("source.kind=dicom", "source.boxes="),
        "table": (*table, "source.columns={" + columns + '"path": "file"}'),
        "hub_rows": hub,
    }


def broken_sources(base: Path) -> dict[str, Path]:
    """Write sources whose tables and reports cannot be read, with canaries in what is wrong.

    Gives name -> config; the manifest of each ends with exit code 3.
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


if __name__ == "__main__":
    sys.exit(main())
