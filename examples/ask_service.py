"""Ask a running service which findings an image shows, where, and what is alike.

    medclip serve                                        # in another terminal, after the demo
    python examples/ask_service.py IMAGE "Left pleural effusion." [--url URL] [--key-file FILE]

The client needs httpx and pydantic alone. Research use only.
"""

import argparse
from pathlib import Path

from medclip_dcl.client import Client


def main() -> None:
    """Put the three questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image", type=Path, help="DICOM, PNG or JPEG")
    parser.add_argument("phrase")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key-file", type=Path)
    options = parser.parse_args()

    key = options.key_file.read_text(encoding="utf-8").strip() if options.key_file else ""
    with Client(options.url, key) as client:
        for finding in client.classify(options.image).findings:
            mark = "x" if finding.decision else " "
            print(f"[{mark}] {finding.name:24} {finding.score:.3f}")
        (found,) = client.ground(options.image, [options.phrase]).phrases
        print(f"{options.phrase!r}: best at x {found.peak.x:.0f}, y {found.peak.y:.0f} pixels")
        for hit in client.retrieve("text", image=options.image, k=3).hits:
            print(f"{hit.score:6.3f}  {hit.texts[0] if hit.texts else hit.id}")


if __name__ == "__main__":
    main()
