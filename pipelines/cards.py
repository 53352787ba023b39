"""Cards: what a model and its data are, in words and as facts; without them no model is published.

model_card.md, model_card.json   intended use, limits, licence; how the model was made; what
                                 it reached
data_card.md, data_card.json     images, reports, labels and what was left out, split by split
"""

from pathlib import Path

from medclip_dcl.core.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.core.errors import ArtifactMissing, ArtifactStale

CARDS = ArtifactType("cards", 2, "write_cards")

MODEL_CARD, MODEL_FACTS = "model_card.md", "model_card.json"
DATA_CARD, DATA_FACTS = "data_card.md", "data_card.json"


def cards_of(work: Path, model: Artifact) -> Artifact:
    """Open the cards in `work`: without those of `model`, an ArtifactError, it is not published."""
    try:
        cards = open_artifact(CARDS.at(work), CARDS)
    except ArtifactMissing as error:
        raise ArtifactMissing(
            f"model {model.digest[:12]} has no card, and is not published without intended use, "
            "limits and licence; fill the config's card section and run write_cards"
        ) from error
    described = cards.fingerprint["inputs"]["model"]
    if described != model.digest:
        raise ArtifactStale(
            f"the cards describe model {described[:12]}, not {model.digest[:12]}; rerun write_cards"
        )
    return cards
