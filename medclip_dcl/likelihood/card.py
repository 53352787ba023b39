"""The card of a language model: what it is, was made from, is for and is not for."""

import json
from collections.abc import Mapping
from typing import Any

INTENDED_USE = (
    "Research on the likelihood of sentences of radiology reports. Not a medical device: no output "
    "may guide the care of a patient."
)
LIMITS = (
    "It knows the language of the reports that it was fitted to, and little else.",
    "A language model may give back parts of what it was fitted to: keep it, and share it, as the "
    "terms of those reports allow and no further.",
    "Its likelihoods say how usual a sentence is, not whether it is true.",
)
LICENSE = "other"
LICENSE_NAME = "terms-of-the-reports-and-of-the-checkpoint"
_LICENSE_TEXT = (
    "This project grants no rights in the model. It is derived data: the terms of the reports that "
    "it was fitted to hold, and those of the checkpoint that it began from, where there was one."
)


def language_model_card(facts: Mapping[str, Any], settings: Mapping[str, Any], began: str) -> str:
    """Write the card of a language model.

    Args:
        facts: figures of the run, such as held-out accuracy; counts and scalars, no texts.
        settings: what it was fitted with; empty: it was not fitted here.
        began: digest of the checkpoint that it began from; empty: from random weights.

    Returns:
        Markdown with the metadata that model hubs read. Equal arguments give equal cards.
    """
    origin = f"the checkpoint with digest `{began}`" if began else "random weights"
    done = "Fitted here by masked word pieces" if settings else "Taken as it is, not fitted here"
    accuracy = facts.get("held_out_accuracy")
    shown = (
        f"It restores {accuracy:.1%} of the {facts['held_out_pieces']:,.0f} word pieces that were "
        "masked in sentences of reports held back."
        if accuracy is not None
        else "Its accuracy was not measured."
    )
    lines = [
        "---",
        f"license: {LICENSE}",
        f"license_name: {LICENSE_NAME}",
        "library_name: transformers",
        "pipeline_tag: fill-mask",
        "tags: [bert, radiology, research-only]",
        "---",
        "# Masked language model of report sentences",
        "",
        f"**{INTENDED_USE}**",
        "",
        f"{done}, from {origin}. {shown}",
        "",
        "## The run",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {json.dumps(value)} |" for name, value in sorted(facts.items())),
        *(f"| `{name}` | {json.dumps(value)} |" for name, value in sorted(settings.items())),
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in LIMITS),
        "",
        "## License",
        "",
        _LICENSE_TEXT,
    ]
    return "\n".join(lines) + "\n"
