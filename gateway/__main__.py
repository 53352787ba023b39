"""Start the gateway: `python -m gateway --config configs/gateway.yaml`."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None, prog: str = "python -m gateway") -> int:
    """Run a command of `launcher`; 2 where the packages of the extra `gateway` are missing."""
    try:
        from .launcher import main as run
    except ModuleNotFoundError as error:
        print(
            f"gateway: {error.name} is not installed; run pip install '.[gateway]' in the checkout",
            file=sys.stderr,
        )
        return 2
    return run(argv, prog)


if __name__ == "__main__":
    sys.exit(main())
