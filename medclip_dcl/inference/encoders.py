"""Both encoders of a published model, with the weights that it was published with."""

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from medclip_dcl.errors import CheckpointError, ConfigError
from medclip_dcl.model_package import SavedModel
from medclip_dcl.models.architectures import hub_closed
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.encoder_files import packaged_text_config, read_tokenizer
from medclip_dcl.models.image_encoder import preprocessing_facts


def load_encoders(published: SavedModel) -> tuple[DualEncoder, PreTrainedTokenizerBase]:
    """Load the encoders of a published model onto the CPU, and its tokenizer; nothing is fetched.

    Raises:
        CheckpointError: weights and configuration do not fit each other, or images were
            prepared otherwise than this version prepares them.
    """
    _check_preprocessing(published)
    with hub_closed():
        text_config = packaged_text_config(published.text_folder)
        model = _build_model(published, text_config)
        return model, read_tokenizer(published.text_folder, text_config)


def _build_model(published: SavedModel, text_config: PreTrainedConfig) -> DualEncoder:
    weights, settings = published.weights(), published.config.model
    try:
        with torch.device("meta"):  # shapes alone: sizes may be anything, and take no memory here
            shapes = {
                name: value.shape
                for name, value in DualEncoder(settings, text_config).state_dict().items()
            }
    except ConfigError as error:
        raise CheckpointError(f"model {published.digest[:12]}: {error}") from error
    if {name: value.shape for name, value in weights.items()} != shapes:
        raise CheckpointError(
            f"weights of model {published.digest[:12]} do not fit its configuration; rerun train"
        )
    model = build_dual_encoder(settings, text_config, seed=0)
    model.load_state_dict(weights)
    return model


def _check_preprocessing(published: SavedModel) -> None:
    trained_on = published.card.get("preprocessing", {})
    here = preprocessing_facts(published.config.images, published.config.model)
    differing = sorted(name for name in here if trained_on.get(name) != here[name])
    if differing:
        name = differing[0]
        raise CheckpointError(
            f"model {published.digest[:12]} was trained with preprocessing {name} = "
            f"{trained_on.get(name)}, this version uses {here[name]}; use the version that "
            "published it, or train again"
        )
