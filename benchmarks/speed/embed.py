"""`/embed` and `medclip embed` over the bare encoder: CPU time of an image.

    python -m benchmarks.embed [--quick | --rounds N]

A ResNet-18 at 480 px with random weights, PyTorch in float32, one core. The service gets 32 JPEG
files of 512 px in a request and answers in base64. The command embeds a folder of them; its start
is left out as the difference between two folders. The bare model takes ready tensors in batches of
eight, which cost it less an image than one at a time does, and decodes the same file without
isolation. All take turns, and a ratio is the median of those of the rounds: what else runs on the
machine slows the neighbors of a round alike. All times are means over as many images. A request
that is not counted comes before each that is: an idle service has given its memory back.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.record import finish, judge
from benchmarks.speed.serve.processes import Bare, bare, cpu_s, one_core, publish_paper_size, served
from medclip_dcl.client import Client
from medclip_dcl.model_package import ARTIFACT
from testing.dicom import raster_bytes
from testing.processes import spent_by
from testing.service import Service
from testing.tiny_models import random_images

PER_REQUEST = 32
_BATCH = 8
FEW, MANY = 32, 160
"""Images in the two folders of the command."""
BARS = {"route_over_bare": ">= 0.95", "command_over_decode_and_forward": ">= 0.97"}


def write_images(folder: Path, count: int) -> Path:
    """Write JPEG files of 512 px."""
    folder.mkdir()
    for number, pixels in enumerate(random_images(count, size_px=512, seed=1)):
        (folder / f"{number:04d}.jpg").write_bytes(raster_bytes(pixels, "jpeg", quality=90))
    return folder


def cpu_s_of_command(folder: Path, model: Path) -> float:
    """Embed a folder in a process of its own, on one core; its CPU seconds."""
    out = folder.with_suffix(".parquet")
    words = ["embed", str(folder), "--model", str(model), "--out", str(out), "--replace"]
    words += ["--engine", "torch"]
    with one_core():
        spent = spent_by([sys.executable, "-m", "pipelines", *words], stdout=sys.stderr)
    if spent.code:
        raise RuntimeError(f"medclip embed ended with exit code {spent.code}")
    out.unlink()
    return spent.cpu_s


def _mean_ms(model: Bare, what: str, subject: object, times: int) -> float:
    return model.ask(what, subject, times)["cpu_mean_ms"]


def _route_ms(client: Client, service: Service, files: Sequence[Path]) -> float:
    client.embed(files[: 2 * _BATCH])
    before = cpu_s(service.process)
    client.embed(files)
    return 1e3 * (cpu_s(service.process) - before) / len(files)


def measure(folder: Path, rounds: int, command_rounds: int) -> dict[str, float]:
    """Measure all in turn; medians of CPU milliseconds of an image, and of a round's ratios."""
    publish_paper_size(folder)
    few, many = (write_images(folder / f"of_{count}", count) for count in (FEW, MANY))
    files = sorted(few.iterdir())[:PER_REQUEST]
    found: dict[str, list[float]] = {}
    with (
        bare(folder / "model") as model,
        served(folder, batch=_BATCH, deadline_s=600, drain_s=600) as service,
        Client(service.url, timeout_s=600) as client,
    ):
        turns = {
            "bare": lambda: _mean_ms(model, "forward", _BATCH, PER_REQUEST // _BATCH),
            "route": lambda: _route_ms(client, service, files),
            "decode": lambda: _mean_ms(model, "decode", files[0], PER_REQUEST),
        }
        for number in range(rounds):
            order = list(turns) if number % 2 else list(turns)[::-1]
            cpu = {name: turns[name]() for name in order}
            apart = cpu["decode"] + cpu["bare"]
            own = {"over_bare": cpu["bare"], "over_decode_and_forward": apart}
            _note(found, {f"route_{name}": cost / cpu["route"] for name, cost in own.items()})
            _note(found, {f"{name}_cpu_ms": cost for name, cost in cpu.items()})
        for _ in range(command_rounds):
            apart = turns["decode"]() + turns["bare"]()
            spent = [cpu_s_of_command(each, ARTIFACT.at(folder)) for each in (few, many)]
            command = 1e3 * (spent[1] - spent[0]) / (MANY - FEW)
            _note(found, {"command_over_decode_and_forward": apart / command})
            _note(found, {"command_cpu_ms": command})
    return {name: median(values) for name, values in found.items()}


def _note(found: dict[str, list[float]], own: dict[str, float]) -> None:
    for name, value in own.items():
        found.setdefault(name, []).append(value)
    print({name: round(value, 3) for name, value in own.items()}, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embed")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument(
        "--rounds", type=int, default=6, help="of the route; the command has a third"
    )
    arguments = parser.parse_args(argv)
    rounds = 1 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), rounds, -(-rounds // 3))
    return finish("embed", figures, judge(figures, BARS))


if __name__ == "__main__":
    sys.exit(main())
