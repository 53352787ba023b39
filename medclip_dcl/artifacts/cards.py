"""Cards: what a model and its data are, in words and as facts; without them no model is published.

model_card.md, model_card.json   intended use, limits, licence; how the model was made; what
                                 it reached
data_card.md, data_card.json     films, reports, labels and what was left out, split by split

The Markdown begins with the metadata that model hubs read.
"""

from pathlib import Path

from medclip_dcl.artifacts.frame import Artifact, Kind, open_artifact
from medclip_dcl.errors import ArtifactMissing, ArtifactStale

KIND = Kind("cards", 1, "write_cards")

MODEL_CARD, MODEL_FACTS = "model_card.md", "model_card.json"
DATA_CARD, DATA_FACTS = "data_card.md", "data_card.json"


def cards_of(work: Path, model: Artifact) -> Artifact:
    """Give the cards of a model: the gate before anything that publishes it.

    Args:
        work: folder of the recipe.
        model: the model that is to be published.

    Returns:
        Its cards; intended use, limits and licence are written in them.

    Raises:
        ArtifactMissing: there are none.
        ArtifactStale: they are those of another model.
        ArtifactCorrupt: they are damaged.
    """
    try:
        cards = open_artifact(KIND.at(work), KIND)
    except ArtifactMissing as error:
        raise ArtifactMissing(
            f"model {model.digest[:12]} has no card, and is not published without intended use, "
            "limits and licence; fill the recipe's card section and run write_cards"
        ) from error
    described = cards.recipe["inputs"]["model"]
    if described != model.digest:
        raise ArtifactStale(
            f"the cards describe model {described[:12]}, not {model.digest[:12]}; rerun write_cards"
        )
    return cards
