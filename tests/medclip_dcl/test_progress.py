"""Progress is a bar on a terminal and JSON lines elsewhere."""

import io
import json

from medclip_dcl.progress import Progress


def test_last_line_counts_everything_once() -> None:
    stream = io.StringIO()
    with Progress("scoring", total=10, unit="sentence", done=4, stream=stream) as progress:
        progress.advance(3, loss=0.5)
        progress.advance(3)
    (line,) = stream.getvalue().splitlines()
    shown = json.loads(line)
    assert (shown["progress"], shown["done"], shown["total"]) == ("scoring", 10, 10)
    assert (shown["loss"], shown["left_s"]) == (0.5, 0)
