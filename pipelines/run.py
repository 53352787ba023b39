"""Run a config: its stages in order, each in a process of its own; what is valid is reused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_dcl.errors import ConfigError

from .cli import Overrides, config_of
from .replacing import refuse_to_replace
from .stages import REPORT, stages_of

if TYPE_CHECKING:
    from rich.progress import Progress

    from .config import Config

_FACTS = 3
_REPORT = "write_report"


def run_config(
    config: Path,
    overrides: Overrides,
    *,
    force: Sequence[str] = (),
    replace: bool = False,
    quiet: bool = False,
) -> int:
    """Run every stage of a config, then sum up; gives 0 or the exit code of what failed.

    The stages in `force` make their artifacts again, and those after them what depends on these.
    """
    loaded = config_of(config, overrides)
    arguments = _arguments(config, overrides)
    is_live = sys.stdout.isatty() and not quiet
    begun = time.monotonic()
    stages = stages_of(loaded)
    if absent := [name for name in force if name not in stages]:
        raise ConfigError(f"--force names {absent}, which this run lacks; it has {list(stages)}")
    if force or replace:
        arguments.append("--replace")
    else:
        refuse_to_replace(loaded, _report_of(loaded).parent, stages)
    early: subprocess.Popen[bytes] | None = None
    for stage in stages:
        forced = ["--force"] if stage in force else []
        command = [*_launcher(stage, loaded), *arguments, *forced]
        if stage == "train" and _REPORT in stages:
            early = _write_report_so_far(loaded, arguments, quiet=quiet, is_live=is_live)
        if early and stage == _REPORT:
            early.wait()  # one of two pages would overwrite the other
        code = _run_plainly(command, quiet=quiet) if not is_live else _run_live(stage, command)
        if code:
            if not quiet:
                print(f"{stage} ended with exit code {code}", file=sys.stderr)
            return code
    if not quiet:
        _sum_up(loaded, time.monotonic() - begun, is_live=is_live)
    return 0


def run_train(
    config: Path, overrides: Overrides = None, *, force: bool = False, replace: bool = False
) -> int:
    """Train a model with as many processes as the config asks for."""
    launcher = _launcher("train", config_of(config, overrides))
    flags = [flag for flag, given in (("--force", force), ("--replace", replace)) if given]
    return _run_plainly([*launcher, *_arguments(config, overrides), *flags])


def _arguments(config: Path, overrides: Overrides) -> list[str]:
    options = [word for override in overrides or () for word in ("--set", override)]
    return ["--config", str(config), *options]


def _launcher(stage: str, config: "Config") -> list[str]:
    # Begins the command line of a stage; `train` is started in one process or many.
    module = ["-m", f"{__package__}.{stage}"]
    if stage != "train" or "WORLD_SIZE" in os.environ:  # somebody has launched us already
        return [sys.executable, *module]
    if file := os.environ.get("ACCELERATE_CONFIG"):
        launch = ["-m", "accelerate.commands.launch", "--num_cpu_threads_per_process", "1"]
        return [sys.executable, *launch, "--config_file", file, *module]
    if (processes := config.train.processes) > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        return [sys.executable, *launch, str(processes), *module]
    return [sys.executable, *module]


def _write_report_so_far(
    config: "Config", arguments: Sequence[str], *, quiet: bool, is_live: bool
) -> subprocess.Popen[bytes]:
    """Give a reader something to look at while the model trains: training leaves a core idle."""
    path = _report_of(config)
    if is_live:
        print(f"  data and eta so far: {path}, in a few seconds")
    elif not quiet:
        print(json.dumps({"report": str(path), "so_far": True}), flush=True)
    return subprocess.Popen(
        [*_launcher(_REPORT, config), *arguments],
        env=_environment(_REPORT),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # what is wrong is said when the page is written at the end
    )


def _environment(stage: str, **more: str) -> dict[str, str]:
    # the result depends on it; a launcher would set it as well
    own = {"OMP_NUM_THREADS": "1"} if stage == "train" else {}
    return {**own, **os.environ, **more}


@contextmanager
def _started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    # Signals are passed on to the stage: it saves, and says how to go on.
    stage = command[command.index("--config") - 1].rpartition(".")[2]
    environment = _environment(stage, **options.pop("env", {}))
    with subprocess.Popen(command, env=environment, text=True, **options) as process:
        held = {
            signal.SIGTERM: lambda *_: process.terminate(),
            # A terminal sends its Ctrl-C to the stage as well.
            signal.SIGINT: signal.SIG_IGN if sys.stdin.isatty() else lambda *_: process.terminate(),
        }
        previous = {number: signal.signal(number, handler) for number, handler in held.items()}
        try:
            yield process
        finally:
            process.wait()
            for number, handler in previous.items():
                signal.signal(number, handler)


def _run_plainly(command: Sequence[str], *, quiet: bool = False) -> int:
    if not quiet:
        with _started(command) as process:
            pass
        return process.returncode
    with _started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            if _parsed(line) is None:
                sys.stderr.write(line)
    return process.returncode


def _run_live(stage: str, command: Sequence[str]) -> int:
    # A stage is one line: a bar with the time left while it works, then what it made.
    from rich import progress

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn(f"{stage:20}"),
        progress.BarColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeRemainingColumn(),
    )
    begun = time.monotonic()
    with progress.Progress(*columns, transient=True) as bar:
        facts = _follow(command, bar)
    mark = {0: "[green]✓[/]" if facts.get("state") == "reused" else "[cyan]●[/]"}
    words = "reused" if facts.get("state") == "reused" else f"{time.monotonic() - begun:.0f} s"
    code = int(facts["code"])
    shown = [
        f"{name} {value}"
        for name, value in facts.items()
        if isinstance(value, int | float) and name not in {"code", "seconds"}
    ]
    bar.console.print(
        f"{mark.get(code, '[red]✗[/]')} {stage:20} {words:>8}  [dim]{', '.join(shown[:_FACTS])}[/]",
        highlight=False,
    )
    return code


def _follow(command: Sequence[str], bar: "Progress") -> dict[str, Any]:
    # What a stage reports until it ends: its last facts, and its exit code as `code`.
    task = bar.add_task("", total=None)
    facts: dict[str, Any] = {}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with _started(command, env={"PROGRESS_EVERY_S": "0.5"}, **pipes) as process:
        for line in process.stdout or ():
            report = _parsed(line)
            if report is None:
                bar.console.print(line.rstrip("\n"), markup=False, highlight=False)
            elif "progress" in report:
                words = f"{report['done']}/{report['total']} {report['unit']}"
                bar.update(task, completed=report["done"], total=report["total"], description=words)
            elif "artifact" in report:
                facts = report
    return {**facts, "code": process.returncode}


def _parsed(line: str) -> dict[str, Any] | None:
    # A line of progress, facts or the service's log; None: it is something to show.
    try:
        report = json.loads(line)
    except json.JSONDecodeError:
        return None
    is_fine = isinstance(report, dict) and report.get("level") not in {"warning", "error"}
    return report if is_fine else None


def _sum_up(config: "Config", seconds: float, *, is_live: bool) -> None:
    report = _report_of(config)
    if is_live:
        from .show import summary_lines

        print("", *summary_lines(report.parent), f"in all   {seconds:.0f} s", sep="\n")
    else:
        facts = {"run": str(report.parent), "seconds": seconds}
        print(json.dumps(facts | ({"report": str(report)} if report.is_file() else {})))


def _report_of(config: "Config") -> Path:
    from medclip_dcl.settings import resolve_path

    return resolve_path(config.work, config.work) / REPORT
