"""How long a newcomer waits for the first picture, the page of `check_data`, and for training.

    python -m checks.newcomer [clone] [wheel] [table]

`clone`: a clone, `make`, generated studies, the page. `wheel`: a wheel in an empty folder, the
same. `table`: a CSV file of one's own, the commands that `init` names, a training run of a few
steps, no file edited. Packages come from pip's cache where it has them. Wall time is that of a
machine with nothing else to do; CPU time holds on a busy one too, short of contention. Exit code 1
where the first picture takes longer than its bar, or a table more commands.
"""

import csv
import gzip
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_PICTURE_S = 135.0
MOST_COMMANDS = 5
_FEW = "--set train.steps=20 --set train.warmup_steps=5 --set language_model.steps=20"


class Walk:
    """The commands of one newcomer, timed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.commands: list[str] = []
        self.wall_s = self.cpu_s = 0.0

    def do(self, command: str, *, counts: bool = True) -> str:
        """Run a command of the shell in the folder; gives what it printed."""
        begun, before = time.monotonic(), os.times()
        ours = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=ours,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: {command} ended with {done.returncode}\n{done.stdout}")
        after = os.times()
        wall, cpu = time.monotonic() - begun, sum(after[2:4]) - sum(before[2:4])
        print(f"  {wall:7.1f} s wall {cpu:7.1f} s CPU  {command}", flush=True)
        if counts:
            self.commands.append(command)
            self.wall_s, self.cpu_s = self.wall_s + wall, self.cpu_s + cpu
        return done.stdout

    def report(self, page: Path) -> bool:
        """Print the walk in a line; whether its bars are met."""
        facts = {
            "walk": self.name,
            "commands": len(self.commands),
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
            "result_exists": (self.folder / page).exists(),
        }
        print(json.dumps(facts), flush=True)
        is_short = self.name == "table" or self.wall_s <= FIRST_PICTURE_S
        is_simple = self.name != "table" or len(self.commands) <= MOST_COMMANDS
        return bool(facts["result_exists"] and is_short and is_simple)


def clone(folder: Path) -> bool:
    """Walk from a clone to the first picture."""
    walk = Walk("clone", folder)
    walk.do(f"git clone --quiet {shlex.quote(str(ROOT))} project")
    walk.folder = folder / "project"
    walk.do("make .venv/runtime")
    return _first_picture(walk, ".venv/bin/medclip")


def wheel(folder: Path) -> bool:
    """Walk from a wheel in an empty folder to the first picture."""
    walk = Walk("wheel", folder)
    build = f"{sys.executable} -m pip wheel --quiet --no-deps --no-build-isolation -w {folder}"
    walk.do(f"{build} {shlex.quote(str(ROOT))}", counts=False)
    walk.do("python3 -m venv .venv")
    lock = shlex.quote(str(ROOT / "requirements.lock"))  # the versions that pip has cached
    walk.do(f".venv/bin/pip install --quiet --no-compile --constraint {lock} *.whl")
    return _first_picture(walk, ".venv/bin/medclip")


def table(folder: Path) -> bool:
    """Walk from a table of one's own to a training run, with this checkout's command."""
    walk = Walk("table", folder)
    medclip = f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} -m pipelines"
    small = "--set generate.patients=150"
    walk.do(
        f"{medclip} generate_studies --config demo --set source.root={folder}/export {small}",
        counts=False,
    )
    _write_table(folder / "export")
    printed = walk.do(f"{medclip} init export/studies.csv --yes")
    for line in printed.splitlines():
        if line.startswith("  medclip "):
            words = line.split(maxsplit=1)[1]
            few = f" {_FEW}" if words.startswith("run") else ""  # a first look, not a model
            walk.do(f"{medclip} {words}{few}")
    return walk.report(Path("runs/studies/model/model.safetensors"))


def _first_picture(walk: Walk, medclip: str) -> bool:
    walk.do(f"{medclip} generate_studies --config demo")
    walk.do(f"{medclip} check_data --config demo")
    return walk.report(Path("runs/demo/preflight.html"))


def _write_table(export: Path) -> None:
    with gzip.open(next(export.glob("*metadata*.csv.gz")), "rt", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    with (export / "studies.csv").open("w", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerow(["Patient ID", "exam", "File", "View Position", "Report"])
        for row in rows:
            patient, study = f"p{row['subject_id']}", f"s{row['study_id']}"
            where = f"files/{patient[:3]}/{patient}/{study}"
            text = (export / f"{where}.txt").read_text(encoding="utf-8")
            file = f"{where}/{row['dicom_id']}.dcm"
            writer.writerow([patient, study, file, row["ViewPosition"], text])


WALKS: dict[str, Callable[[Path], bool]] = {"clone": clone, "wheel": wheel, "table": table}


def main(names: list[str]) -> int:
    """Walk each way that is named, else all; 1 where a bar is missed."""
    met = []
    for name in names or WALKS:
        with tempfile.TemporaryDirectory() as folder:
            met.append(WALKS[name](Path(folder)))
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
