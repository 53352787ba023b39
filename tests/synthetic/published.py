"""A tiny published model with random weights, sealed as `train` would."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from medclip_dcl.artifact import Artifact, make_fingerprint, write_artifact
from medclip_dcl.config import Config
from medclip_dcl.likelihood.fitting import train_tokenizer
from medclip_dcl.model_package import ARTIFACT, InputRange, write_input_range, write_model_package
from medclip_dcl.models.preprocessing import preprocessing_facts
from tests.synthetic.films import tiny_dual_encoder, tiny_model_config, tiny_text_config

SENTENCES = (
    "There is a left pleural effusion.",
    "There is a right pleural effusion.",
    "No pleural effusion.",
    "The heart is enlarged.",
    "Heart size is normal.",
    "There is right lower lobe pneumonia.",
    "No signs of pneumonia.",
)
PROMPTS = [
    {
        "name": "effusion",
        "label": "Pleural Effusion",
        "positive": "Pleural effusion",
        "negative": "No pleural effusion",
    },
    {
        "name": "pneumonia",
        "label": "Pneumonia",
        "positive": ["Pneumonia", "Right lower lobe pneumonia"],
        "negative": "No signs of pneumonia",
    },
]

CARD = {
    "prompts": PROMPTS,
    "training": {"steps": 12, "global_batch": 8},
    "data": {"studies": 24, "patients": 24},
}


def publish(
    folder: Path,
    subjects: Iterable[str] = ("trained",),
    seed: int = 0,
    preprocessing: Mapping[str, object] | None = None,
    known: InputRange | None = None,
    config: Config | None = None,
) -> Artifact:
    """Seal a model into `folder`; by default a tiny one for 64-pixel images.

    `preprocessing` changes its card, `config` is that of another model.
    """
    if config is None:
        tree = {"model": tiny_model_config().model_dump(), "images": {"size_px": 64}}
        config = Config.model_validate({"work": "unused", **tree})
    facts = preprocessing_facts(config.images, config.model) | dict(preprocessing or {})
    tokenizer = train_tokenizer(SENTENCES, vocabulary=200, max_tokens=32)
    model = tiny_dual_encoder(config.model, len(tokenizer), seed)

    def write_text_files(text: Path) -> None:
        tokenizer.save_pretrained(str(text))
        tree = tiny_text_config(len(tokenizer)).to_dict()
        (text / "config.json").write_text(json.dumps(tree))

    with write_artifact(folder, ARTIFACT, make_fingerprint(ARTIFACT, {"seed": seed}, {})) as writer:
        write_model_package(
            writer.directory,
            model.state_dict(),
            config,
            CARD | {"preprocessing": facts},
            subjects,
            write_text_files,
        )
        if known is not None:
            write_input_range(writer.directory, known)
        return writer.commit({})
