"""What sharing the scores among processes costs, in CPU seconds.

    python -m benchmarks.pll.processes --config FILE [--counts 1 2 4]

FILE names a run whose sentences and language model are made. Each count scores them again, from
nothing, in a folder of its own: torchrun starts so many processes on this machine, each with one
worker. Where there are fewer cores than processes, CPU seconds are valid and wall seconds are not.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import finish
from medclip_dcl.config import load_config, resolve_path
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.text import sentences


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a launch failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pll.processes")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args(argv)
    config = load_config(arguments.config)
    made = resolve_path(config.work, config)
    figures: dict[str, float] = {}
    for count in arguments.counts:
        with tempfile.TemporaryDirectory() as folder:
            for kind in (sentences.ARTIFACT, masked_lm.ARTIFACT):
                shutil.copytree(kind.at(made), kind.at(Path(folder)))
            settings = (f"work={folder}", "likelihood.workers=1")
            launch = ["--standalone", "--nproc-per-node", str(count)]
            job = ["-m", "pipelines.score_sentences", "--config", str(arguments.config)]
            overrides = [part for item in settings for part in ("--set", item)]
            before, wall = os.times(), time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", *launch, *job, *overrides],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            wall, after = time.perf_counter() - wall, os.times()
        if done.returncode:
            return 1
        user, system = after.children_user, after.children_system
        cpu = user + system - before.children_user - before.children_system
        figures |= {f"cpu_s_{count}": cpu, f"wall_s_{count}": wall}
        print(f"{count} processes: {cpu:8.1f} s CPU, {wall:8.1f} s wall", flush=True)
    return finish("pll_processes", figures, {})


if __name__ == "__main__":
    sys.exit(main())
