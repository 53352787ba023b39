"""Heads of a tiny model, as `fit_head` leaves them."""

import numpy as np

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import Head, HeadCard, HeadFigure, write_heads
from medclip_dcl.inference.model_package import Curve, rewrite_package
from tests.support.published import fitted


def head_card(name: str, *, is_refused: bool = False, curve: Curve | None = None) -> HeadCard:
    """Make the card of a head whose threshold is a margin of 0."""
    reason = "upside down" if is_refused else "too few images"
    return HeadCard(
        name=name,
        kind="linear",
        features="space",
        chosen=None,
        threshold=0.0,
        calibration=fitted(name, "" if curve else reason, curve=curve, is_refused=is_refused),
        images_with=10,
        images_without=20,
        patients=30,
        figures={"auc": HeadFigure(value=0.75, low=0.5, high=0.9, n=8, subjects=8)},
        inputs={},
        settings={},
    )


def add_heads(model: Artifact, width: int) -> Artifact:
    """Put a calibrated head and a refused one into a model; the margin of both is 0.5."""
    arrays = {"weight": np.zeros(width), "bias": np.array([0.5])}
    cards = (head_card("tuberculosis", curve=Curve(slope=1.0)), head_card("tube", is_refused=True))
    heads = [Head(card, arrays) for card in cards]
    names = (model_package.HEADS_FILE, model_package.HEAD_ARRAYS_FILE)
    return rewrite_package(model, model.path, names, lambda folder: write_heads(folder, heads))
