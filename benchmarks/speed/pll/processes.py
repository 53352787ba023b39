"""What sharing the scores among processes costs, in CPU seconds.

    python -m benchmarks.pll.processes --config FILE [--counts 1 2 4]

FILE names a run whose sentences and language model are made. Each count scores them again, from
nothing, in a folder of its own: torchrun starts so many processes on this machine, each with one
worker. Where there are fewer cores than processes, CPU seconds are valid and wall seconds are not.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import finish, judge
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.settings import resolve_path
from medclip_dcl.text import sentences
from pipelines.config import load_config
from testing.processes import options, spent_by


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a launch failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pll.processes")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args(argv)
    config = load_config(arguments.config)
    made = resolve_path(config.work, config.work)
    figures: dict[str, float] = {}
    for count in arguments.counts:
        with tempfile.TemporaryDirectory() as folder:
            for kind in (sentences.ARTIFACT, masked_lm.ARTIFACT):
                shutil.copytree(kind.at(made), kind.at(Path(folder)))
            launch = ["--standalone", "--nproc-per-node", str(count)]
            job = ["-m", "pipelines.score_sentences", "--config", str(arguments.config)]
            job += options((f"work={folder}", "likelihood.workers=1"))
            spent = spent_by(
                [sys.executable, "-m", "torch.distributed.run", *launch, *job],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        if spent.code:
            return 1
        figures |= {f"cpu_s_{count}": spent.cpu_s, f"wall_s_{count}": spent.wall_s}
    return finish("pll_processes", figures, judge(figures, {}))


if __name__ == "__main__":
    sys.exit(main())
