"""Language model: the masked language model and tokenizer that score every sentence."""

from medclip_dcl.artifacts.frame import Artifact, Kind

KIND = Kind("language_model", 1, "fit_language_model")

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
FILES = (CONFIG, WEIGHTS, TOKENIZER, "tokenizer_config.json")
"""The folder's files, as `transformers.BertForMaskedLM` and `AutoTokenizer` read them offline."""


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
