"""Pages of the site that are made from the code: commands, settings, routes, errors, targets.

`hooks.py` puts them into the site; tests check them without it.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from pydicom.uid import UID, ExplicitVRLittleEndian
from pynetdicom.sop_class import Verification

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the code of the checkout, not of an installed package

from api.app import create_app  # noqa: E402
from api.errors import ERRORS, IMAGE_STATUS  # noqa: E402
from api.settings import ServeSettings  # noqa: E402
from benchmarks.record import processor_of  # noqa: E402
from docs import reference  # noqa: E402
from medclip_dcl.core import errors  # noqa: E402
from medclip_dcl.data.dicom import metadata, reader  # noqa: E402
from medclip_dcl.data.limits import REASONS  # noqa: E402
from medclip_dcl.data.selection import SOURCE_REASONS  # noqa: E402
from medclip_hospital.gateway import destinations, listener  # noqa: E402
from medclip_hospital.gateway.settings import GatewaySettings  # noqa: E402
from pipelines.__main__ import COMMANDS, _load  # noqa: E402
from pipelines.report.preflight import CODES  # noqa: E402

NOTEBOOK = "examples/trained_model.ipynb"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Make a table in Markdown."""
    names = list(head)
    return "\n".join([_row(names), "|---" * len(names) + "|", *map(_row, rows)])


def settings_page() -> str:
    """Every setting of runs, of the service and of the gateway."""
    parts = [
        "# Settings",
        "Of a run: by dotted name, `--set train.steps=100`, or a key of a YAML file.",
    ]
    sections: dict[str, list[reference.SettingReference]] = {}
    for setting in reference.setting_references():
        section, dot, _ = setting.name.partition(".")
        sections.setdefault(section if dot else "A run", []).append(setting)
    for section, settings in sections.items():
        parts += [f"## {section}", *_described(settings)]
    parts += ["## The service", "Keys of its YAML file, or variables such as `MEDCLIP_MODEL`."]
    parts += _described(reference.setting_references(ServeSettings), "service")
    parts += ["## The gateway", "Keys of its YAML file."]
    parts += _described(reference.setting_references(GatewaySettings), "gateway")
    return _page(parts)


def artifacts_page() -> str:
    """Every artifact, its tables and their columns."""
    parts = [
        "# Artifacts and their columns",
        "Rules and inputs: [the contract](../artifacts.md).",
    ]
    for artifact in reference.artifact_references():
        kind = artifact.kind
        parts += [f"## `{kind.name}`", f"Format {kind.version}, made by `{kind.job}`."]
        parts.append(artifact.meaning)
        for form in artifact.tables:
            rows = ((f"`{one.name}`", str(one.type), one.meaning) for one in form.columns)
            parts += [f"### `{form.file}`", table(("column", "type", "meaning"), rows)]
    return _page(parts)


def inputs_page() -> str:
    """The files of each kind of source, and what is read of them."""
    rows = yaml.safe_load((ROOT / "docs/inputs.yaml").read_text("utf-8"))
    parts = ["# Inputs of each source", "Rules for all: [the contract](../artifacts.md#inputs)."]
    for kind, files in groupby(rows, key=lambda row: row["kind"]):
        cells = ((row["file"], row["needed"], row["read"]) for row in files)
        parts += [f"## `{kind}`", table(("file", "needed", "what is read of it"), cells)]
    return _page(parts)


def dicom_page() -> str:
    """Tags that are read of an image, and what the gateway speaks."""
    uses: dict[str, list[str]] = {}
    for name in metadata.TAGS.values():
        uses.setdefault(name, []).append("the list of a folder's images")
    for name in (*reader.PUBLIC_TAGS, *reader.PIXEL_TAGS):
        uses.setdefault(name, []).append("the picture")
    kept = dict.fromkeys(reader.PUBLIC_TAGS, "code string") | {
        "SOPInstanceUID": "`image_id`",
        "StudyInstanceUID": "`study_id`",
        "PatientID": "keyed hash, `subject_id`",
        "ViewPosition": "`view`",
    }
    tags = ((f"`{tag}`", ", ".join(use), kept.get(tag, "not kept")) for tag, use in uses.items())
    roles = [(Verification, "SCP"), *((UID(uid), "SCP") for uid in listener.ACCEPTED)]
    roles += [(UID(uid), "SCU, STOW-RS") for uid in destinations.SENT]
    syntaxes = ((UID(uid).name, uid) for uid in metadata.SYNTAXES)
    written = f"{ExplicitVRLittleEndian.name} ({ExplicitVRLittleEndian})"
    return _page(
        [
            "# DICOM: tags and conformance",
            "## Tags that are read",
            "Values of all other tags are skipped.",
            table(("tag", "read for", "kept as"), tags),
            "## What the gateway receives and sends",
            table(("SOP class", "UID", "role"), ((uid.name, uid, role) for uid, role in roles)),
            table(("transfer syntax of images", "UID"), syntaxes),
            f"What is sent is written in {written}.",
        ]
    )


def errors_page() -> str:
    """Exit codes, and every exception of the library."""
    text = importlib.import_module("pipelines.cli").__doc__ or ""
    codes = re.findall(r"^    (\d+)\s+(.+)$", text, re.MULTILINE)
    tree = [
        (f"`{name}`", str(item.exit_code), (item.__doc__ or "").splitlines()[0])
        for name, item in vars(errors).items()
        if name[0] != "_" and inspect.isclass(item) and issubclass(item, errors.MedclipError)
    ]
    parts = ["# Exit codes and errors", table(("exit code", "meaning"), codes)]
    parts += ["## Errors", table(("error", "exit code", "raised when"), tree)]
    return _page(parts)


def routes_page() -> str:
    """Every route of the service, its answers and their fields."""
    document = create_app(ServeSettings(model="model", allow_anonymous=True)).openapi()
    parts = ["# Routes and answers", "From the service's own OpenAPI document."]
    for path, methods in document["paths"].items():
        for method, facts in methods.items():
            about = facts.get("description") or facts.get("summary", "")
            answers = (
                (status, answer["description"])
                for status, answer in sorted(facts["responses"].items())
            )
            parts += [f"## `{method.upper()} {path}`", about]
            parts += _request_fields(facts, document["components"]["schemas"])
            parts += [table(("status", "answer"), answers)]
    fields = (
        (name, f"`{field}`", facts.get("description", ""))
        for name, schema in document["components"]["schemas"].items()
        for field, facts in schema.get("properties", {}).items()
    )
    return _page([*parts, "## Answers", table(("answer", "field", "meaning"), fields)])


def _request_fields(facts: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    rows = [
        (f"`{one['name']}`", one["in"], one.get("description", "see above"))
        for one in facts.get("parameters", ())
    ]
    for content in facts.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        schema = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
        needed = schema.get("required", ())
        rows += [
            (f"`{name}`", "required" if name in needed else "", field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ]
    rows = [(name, needed or "optional", meaning or "see above") for name, needed, meaning in rows]
    return [table(("field", "needed", "meaning"), rows)] if rows else []


def troubleshooting_page() -> str:
    """Every code of a failed request, and every reason by which a study or an image is left out."""
    remedies = yaml.safe_load((ROOT / "docs/remedies.yaml").read_text("utf-8"))
    lines = [(code, *found) for code, found in ERRORS.items()]
    lines += [(code, IMAGE_STATUS.get(code, 422), line) for code, line in REASONS.items()]
    requests = [(f"`{code}`", str(status), line, remedies[code]) for code, status, line in lines]
    left_out = [("`build_manifest`", f"`{code}`", text) for code, text in SOURCE_REASONS.items()]
    left_out += [("`prepare_images`", f"`{code}`", text) for code, text in REASONS.items()]
    left_out += [("`check_data`", f"`{code}`", text) for code, (_, text) in CODES.items()]
    parts = [
        "# Troubleshooting by error code",
        "The service answers a request that fails with a code, a line and the id that its log "
        "knows it by.",
        table(("code", "status", "meaning", "what to do"), requests),
        "## Rejects",
        "Rows of a job's `rejects.parquet`, and what `check_data` reports.",
        table(("job", "code", "meaning"), left_out),
    ]
    return _page(parts)


def command_page() -> str:
    """Every command, panel by panel."""
    parts = [
        "# The command",
        "`medclip NAME --help` has the options of each. In the checkout, "
        "`python -m pipelines NAME` is the same. [Exit codes](errors.md).",
    ]
    for panel, names in COMMANDS.items():
        parts.append(f"## {panel}")
        for name, line in names.items():
            parts += [f"### `medclip {name}`", line, *_options(_load(name), f"medclip {name}")]
    return _page(parts)


def _options(command: Any, words: str) -> list[str]:
    if hasattr(command, "commands"):  # a group, such as `ask`
        return [
            part
            for name, inner in command.commands.items()
            for part in (f"**`{words} {name}`**: {inner.help}", *_options(inner, f"{words} {name}"))
        ]
    rows = [
        (f"`{' '.join(item.opts) if item.opts[0][0] == '-' else item.metavar}`", item.help)
        for item in command.params
        if getattr(item, "help", None)
    ]
    return [table(("option", "meaning"), rows)] if rows else []


def api_page() -> str:
    """Public names of the library, which mkdocstrings documents."""
    package = importlib.import_module("medclip_dcl")
    parts = ["# Python API", "Public names of `medclip_dcl`; each is loaded on first use."]
    for name, home in sorted(package._HOMES.items()):  # jobs are beside it in a checkout
        top = "" if home.startswith("pipelines.") else "medclip_dcl."
        parts.append(f"::: {top}{home}.{name}")
    parts += ["::: medclip_dcl.inference.predictor.Predictor", "::: medclip_dcl.client.Client"]
    return _page(parts)


def targets_page() -> str:
    """Every target that was fixed before a run, with what was measured."""
    parts = [
        "# Every target",
        "Targets that benchmarks fixed before they ran, with the figures of the last full run: "
        "from `benchmarks/results`. [What they mean](../results/index.md).",
    ]
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        kept = json.loads(path.read_text("utf-8"))
        others = kept.get("others", {})
        rows = (
            (
                f"`{name}`",
                one["bar"],
                _measured(kept, name),
                *(_measured(o, name) for o in others.values()),
            )
            for name, one in kept.get("bars", {}).items()
            if name in kept["figures"]
        )
        days = [f"{name}, {tree['machine']['date']}" for name, tree in others.items()]
        if (body := table(("figure", "target", "measured", *days), rows)).count("\n") > 1:
            parts += [
                f"## {path.stem}",
                f"{processor_of(kept)}, {kept['machine'].get('date', '')}",
                body,
            ]
    return _page(parts)


def _measured(kept: dict[str, Any], name: str) -> str:
    """Return a figure of a kept result, and whether its target is met."""
    if name not in kept["figures"]:
        return ""
    is_missed = not kept["bars"][name]["met"]
    return f"{kept['figures'][name]:.4g}" + ", **missed**" * is_missed


def notebook_page() -> str:
    """The notebook of a trained model, with its outputs."""
    cells = json.loads((ROOT / NOTEBOOK).read_text("utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                picture = "".join(output["data"]["image/png"].split())
                parts.append(f"![Output of the cell above](data:image/png;base64,{picture})")
    return _page(parts)


PAGES: dict[str, Callable[[], str]] = {
    "reference/api.md": api_page,
    "reference/artifacts.md": artifacts_page,
    "reference/command.md": command_page,
    "reference/dicom.md": dicom_page,
    "reference/errors.md": errors_page,
    "reference/inputs.md": inputs_page,
    "reference/routes.md": routes_page,
    "reference/settings.md": settings_page,
    "reference/targets.md": targets_page,
    "reference/troubleshooting.md": troubleshooting_page,
    "trained_model.md": notebook_page,
}
"""Path on the site -> its text."""


def _described(settings: Iterable[reference.SettingReference], of: str = "run") -> list[str]:
    # A heading each: the search finds it, and a link can lead to it.
    parts = []
    for one in settings:
        default = one.default if one.default == "required" else f"default `{one.default}`"
        values = " · ".join(f"`{choice}`" for choice in one.choices)
        parts += [f"### `{one.name}` {{: #{of}-{one.name} }}", one.meaning]
        parts += [f"*{default}*" + (f" of {values}" if values else "")]
    return parts


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
