"""Build and run docker/ with a real engine, as the page says, and check what the page says.

    python -m tests.containers [--engine docker | podman] [--full]

`make containers` is the same with both engines and --full, which adds the image with OpenVINO. One
line a check and the figures as JSON; the exit code is 1 where a check fails, and 0 with the reason
where no engine can be had here.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import finish
from tests.containers.checks import Checks
from tests.containers.engine import CannotRun, Engine


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(prog="python -m tests.containers")
    parser.add_argument("--engine", choices=("docker", "podman"), default="docker")
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))  # so that the engine is ended too
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="containers.", dir="/var/tmp"))
    work.chmod(0o755)
    engine = Engine(arguments.engine, work)
    try:
        engine.start()
        report = Checks(engine)
        report.run(full=arguments.full)
    except CannotRun as reason:
        print(f"containers are not checked with {arguments.engine}: {reason}")
        return 0
    finally:
        engine.stop()
    seconds = round(time.monotonic() - started)
    print(f"{arguments.engine}: {report.passed} passed, {report.failed} failed, {seconds} s")
    figures = {**report.figures, "passed": report.passed, "failed": report.failed}
    finish(f"containers_{arguments.engine}", {**figures, "seconds": seconds}, {})
    return int(report.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
