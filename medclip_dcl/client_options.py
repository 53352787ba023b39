"""Command line of the client: a question, and what it is asked with."""

import argparse
from pathlib import Path


def client_parser(prog: str) -> argparse.ArgumentParser:
    """Make the parser of a question to a service; the help calls the command `prog`."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--url", default="http://127.0.0.1:8000", help="address of the service")
    shared.add_argument("--key-file", type=Path, help="file with the API key")
    shared.add_argument(
        "--ca", type=Path, help="PEM file of the authorities that sign the other side's certificate"
    )
    parser = argparse.ArgumentParser(prog=prog)
    questions = parser.add_subparsers(dest="question", required=True)
    classify = questions.add_parser("classify", parents=[shared], help="which findings?")
    classify.add_argument("image", type=Path, nargs="+")
    classify.add_argument("--explain", action="store_true", help="with heatmaps")
    ground = questions.add_parser("ground", parents=[shared], help="where is it seen?")
    ground.add_argument("image", type=Path)
    ground.add_argument("phrase", nargs="+")
    ground.add_argument("--threshold", type=float, help="score from which boxes are traced")
    embed = questions.add_parser("embed", parents=[shared], help="vectors of images or sentences")
    embed.add_argument("image", type=Path, nargs="*")
    embed.add_argument("--text", action="append", default=[], help="a sentence, not an image")
    embed.add_argument("--what", choices=["global", "regions"], default="global")
    numbers = ("X", "Y", "WIDTH", "HEIGHT")
    embed.add_argument(
        "--box", type=float, nargs=4, metavar=numbers, action="append", default=[],
        help="of the vector, on each image, pixels",
    )  # fmt: skip
    embed.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    embed.add_argument("--format", choices=["json", "base64"], default="json")
    retrieve = questions.add_parser("retrieve", parents=[shared], help="what is similar?")
    retrieve.add_argument("--target", choices=["image", "text"], required=True)
    asked = retrieve.add_mutually_exclusive_group(required=True)
    asked.add_argument("--text", default="", help="a sentence")
    asked.add_argument("--image", type=Path)
    retrieve.add_argument("--box", type=float, nargs=4, metavar=("X", "Y", "WIDTH", "HEIGHT"))
    retrieve.add_argument("-k", type=int, default=10, help="hits at most")
    for name in ("split", "view", "finding"):
        retrieve.add_argument(f"--{name}", action="append", default=[])
    retrieve.add_argument("--exclude-patient", default="")
    return parser
