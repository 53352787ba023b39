"""`medclip-hospital`: answers on DICOM images as DICOM objects, by file or as images arrive.

    medclip-hospital report IMAGE --out FOLDER              objects of one image
    medclip-hospital gateway --config FILE                  run until a signal stops it
    medclip-hospital gateway status --config FILE           images by state, and those in trouble
    medclip-hospital gateway retry [DIGEST] --config FILE   take up what is stuck
    medclip-hospital gateway forget DIGEST --config FILE    remove an image; sent again, it is new

DIGEST is the beginning of an image's SHA-256, as `status` and the log show it.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives 0, or the error's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "--help"
    if command not in {"report", "gateway"}:
        is_help = command in {"-h", "--help"}
        print(__doc__, file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    try:
        if command == "report":
            from .report import main as run
        else:
            from .gateway.launcher import main as run
    except ModuleNotFoundError as error:
        of_library = (error.name or "").split(".")[0] == "medclip_dcl"
        way = "--no-deps ." if of_library else "./hospital"
        print(
            f"{command}: {error.name} is not installed; run pip install {way} in the checkout",
            file=sys.stderr,
        )
        return 2
    return run(words[1:])


if __name__ == "__main__":
    sys.exit(main())
