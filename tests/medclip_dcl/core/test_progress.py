"""Progress is a bar on a terminal and JSON lines elsewhere."""

import io
import json

from medclip_dcl.core.progress import Progress


def test_progress_counts_everything_and_writes_lines_at_most_so_often(monkeypatch):
    stream = io.StringIO()
    with Progress("scoring", total=10, unit="sentence", done=4, stream=stream) as progress:
        progress.advance(3, loss=0.5)
        progress.advance(3)
    (line,) = stream.getvalue().splitlines()
    shown = json.loads(line)
    assert (shown["progress"], shown["done"], shown["total"]) == ("scoring", 10, 10)
    assert (shown["loss"], shown["left_s"]) == (0.5, 0)
    monkeypatch.setenv("PROGRESS_EVERY_S", "0")
    stream = io.StringIO()
    with Progress("scoring", total=3, unit="sentence", stream=stream) as progress:
        for _ in range(3):
            progress.advance()
    shown = [json.loads(line)["done"] for line in stream.getvalue().splitlines()]
    assert shown == [1, 2, 3, 3]  # the last at the end
