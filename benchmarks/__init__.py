"""Figures that the pages quote: speed, reliability, method."""

from pathlib import Path

# `python -m benchmarks.pll` finds `benchmarks/speed/pll`: a name is enough to run a benchmark.
__path__ += [str(Path(__path__[0]) / group) for group in ("speed", "reliability", "method")]
