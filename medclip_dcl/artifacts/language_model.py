"""Language model: the masked language model and tokenizer that score every sentence.

Its files:

    config.json, model.safetensors           a BertForMaskedLM
    tokenizer.json, tokenizer_config.json    its word pieces, learned or given
    README.md                                its card
"""

from medclip_dcl.artifacts.frame import Artifact, Kind, json_digest

KIND = Kind("language_model", 1, "fit_language_model")

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
CARD = "README.md"
FILES = (CARD, CONFIG, WEIGHTS, TOKENIZER, "tokenizer_config.json")
"""The folder's files: the card, and what transformers' own classes read offline."""


def model_digest(artifact: Artifact) -> str:
    """Name the weights and sizes of a language model, whatever its card says.

    Args:
        artifact: a language model.

    Returns:
        Digest of its weights and config, 64 hexadecimal digits.

    Raises:
        ArtifactCorrupt: it holds no weights or no config.
    """
    for name in (CONFIG, WEIGHTS):
        artifact.file(name)
    return json_digest({name: artifact.files[name]["sha256"] for name in (CONFIG, WEIGHTS)})


def tokenizer_digest(artifact: Artifact) -> str:
    """Name the tokenizer of a language model.

    Args:
        artifact: a language model.

    Returns:
        SHA-256 of its tokenizer.json, 64 hexadecimal digits.

    Raises:
        ArtifactCorrupt: it holds no tokenizer.
    """
    artifact.file(TOKENIZER)
    digest: str = artifact.files[TOKENIZER]["sha256"]
    return digest
