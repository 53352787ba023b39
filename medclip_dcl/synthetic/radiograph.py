"""Radiographs: from a body and its findings to the intensities of one image, and exact boxes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_dcl.synthetic import anatomy
from medclip_dcl.synthetic.anatomy import (
    Box,
    Canvas,
    Chest,
    ChestShape,
    Field,
    Pose,
    inside,
    make_canvas,
    smooth_noise,
)
from medclip_dcl.synthetic.findings import FineFinding
from medclip_dcl.synthetic.signs import SIGNS, Scene


@dataclass(frozen=True)
class DrawnImage:
    """Intensities in [0, 1], bright where little passes, and the exact boxes."""

    pixels: Field
    boxes: dict[FineFinding, list[Box]]

    def facts(self) -> dict[str, Any]:
        """Give what the tables need: height and width, pixels, and boxes by finding."""
        height, width = self.pixels.shape
        boxes = {finding.name: found for finding, found in self.boxes.items()}
        return {"height": height, "width": width, "boxes": boxes}


def draw_frontal(
    body: ChestShape,
    findings: Mapping[FineFinding, float],
    size_px: int,
    generator: np.random.Generator,
) -> DrawnImage:
    """Draw a frontal image of a healthy body with findings, severities in [0, 1].

    The longer side has `size_px` pixels. The same generator without a finding gives the
    same image but for that finding.
    """
    chance, sign_chance, exposure = generator.spawn(3)
    canvas = _draw_canvas(size_px, chance)
    shaped = anatomy.with_findings(body, findings)
    chest = anatomy.project(canvas, shaped)
    scene = Scene(canvas, chest, _compose(canvas, chest, chance), sign_chance)
    boxes = {
        finding: SIGNS[finding.type](scene, finding, level) for finding, level in findings.items()
    }
    pixels = _expose(_mark(scene.image, exposure), exposure)
    return DrawnImage(pixels, {item: found for item, found in boxes.items() if found})


def draw_lateral(body: ChestShape, size_px: int, generator: np.random.Generator) -> DrawnImage:
    """Draw a plausible lateral image without findings."""
    canvas = _draw_canvas(size_px, generator)
    x, y = canvas.x, canvas.y
    trunk = np.sqrt(np.clip(1.6 * (1 - np.hypot(x / 0.9, (y - 0.15) / 1.55)), 0, 1))
    lung = inside((np.hypot((x - 0.05) / 0.58, (y + 0.1) / 0.78) - 1) * 0.5, 0.03)
    lung *= inside(y - 0.42 - 0.35 * (x - 0.1) ** 2 - 0.2 * x, 0.02)
    heart = inside(np.hypot((x + 0.18) / 0.3, (y - 0.22) / 0.3) - body.heart_width, 0.25)
    column = x - 0.46 - 0.1 * np.cos(2.2 * (y - 0.1))
    bone = inside(np.abs(column) - 0.075, 0.02) * (0.75 + 0.25 * np.cos(44 * y))
    arch = np.abs(np.sin((y - 0.5 * x) / body.rib_spacing * np.pi / 1.2))
    image = 0.55 * trunk - 0.34 * lung * (1 - 0.8 * heart) + 0.16 * bone + 0.05 * heart
    image += 0.05 * lung * arch
    return DrawnImage(_expose(image.astype(np.float32), generator), {})


def _draw_canvas(size_px: int, generator: np.random.Generator) -> Canvas:
    width = round(size_px * generator.uniform(0.84, 1.0))
    pose = Pose(
        shift_x=generator.normal(0, 0.025),
        shift_y=generator.normal(0.06, 0.03),
        angle=generator.normal(0, 0.025),
        scale=generator.uniform(0.95, 1.06),
    )
    return make_canvas(size_px, width, pose)


def _compose(canvas: Canvas, chest: Chest, generator: np.random.Generator) -> Field:
    body = chest.body
    tissue = anatomy.torso(canvas)
    belly = inside(-chest.domes - 0.02, 0.03) * inside(chest.across - chest.outer - 0.04, 0.05)
    middle = inside(chest.across - body.mediastinum - 0.10, 0.12)
    image = tissue * (0.47 + 0.05 * body.softness + 0.17 * belly + 0.05 * middle)
    image -= 0.40 * chest.lungs * chest.depth
    image += (0.11 * chest.core + 0.05 * chest.heart + 0.04 * chest.aorta) * (1 - belly) * tissue
    area = canvas.window(-0.4, -1.3, 0.4, 1.3)
    narrow, part = canvas.cut(area), chest.cut(area)
    image[area] -= 0.07 * anatomy.airways(narrow, part)
    image[area] += 0.085 * anatomy.spine(narrow, part) * tissue[area] * (1 - 0.4 * belly[area])
    image += 0.095 * anatomy.ribs(canvas, chest) * (0.4 + 0.6 * chest.lung_outline)
    area = canvas.window(-1.2, -0.92, 1.2, -0.04)
    narrow, part = canvas.cut(area), chest.cut(area)
    image[area] += 0.11 * anatomy.clavicles(narrow, part) * tissue[area]
    image += 0.16 * anatomy.vessels(canvas, chest, generator) * chest.lungs
    if body.breast > 0:
        fold = np.hypot((chest.across - 0.5) / 1.1, canvas.y - 0.12) - 0.3
        image += body.breast * inside(fold, 0.02) * inside(-canvas.y - 0.05, 0.2)
    if body.stomach > 0:
        bubble = np.hypot(chest.m - 0.34, (canvas.y - body.dome_left - 0.14) * 1.5) - 0.13
        image -= 1.6 * body.stomach * inside(bubble, 0.03) * inside(-chest.domes - 0.02, 0.02)
    return np.asarray(image, dtype=np.float32)


def _mark(image: Field, generator: np.random.Generator) -> Field:
    """Put a lead side marker next to a shoulder: R on the left of the image, L on its right."""
    is_right = generator.random() < 0.5
    unit = max(1, image.shape[0] // 128)
    letter = np.kron(_LETTER_R if is_right else _LETTER_L, np.ones((unit, unit), np.uint8))
    rows, columns = letter.shape
    top = int(image.shape[0] * generator.uniform(0.03, 0.1))
    edge = int(image.shape[1] * generator.uniform(0.03, 0.07))
    left = edge if is_right else image.shape[1] - edge - columns
    spot = image[top : top + rows, left : left + columns]
    np.maximum(spot, 0.95 * letter[: spot.shape[0], : spot.shape[1]], out=spot)
    return image


def _expose(image: Field, generator: np.random.Generator) -> Field:
    """Turn attenuation into what a detector stores: haze, gain, contrast curve and grain."""
    shape = image.shape
    image = image + 0.022 * smooth_noise(shape, (3, 3), generator)
    image = np.clip(image * generator.uniform(0.92, 1.1) + generator.uniform(-0.03, 0.04), 0.001, 1)
    image **= np.float32(generator.uniform(0.85, 1.2))
    grain = generator.standard_normal(shape, dtype=np.float32)
    grain[1:] += 0.5 * grain[:-1]
    image += np.float32(generator.uniform(0.008, 0.018)) * grain
    return np.clip(image, 0, 1)


def _glyph(rows: str) -> NDArray[np.uint8]:
    return np.array([[int(dot) for dot in row] for row in rows.split()], dtype=np.uint8)


_LETTER_R = _glyph("11110 10001 10001 11110 10100 10010 10001")
_LETTER_L = _glyph("10000 10000 10000 10000 10000 10000 11111")
