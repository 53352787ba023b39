"""Radiographs: from a body and its findings to the intensities of one image, and exact boxes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from medclip_dcl.synthetic import anatomy
from medclip_dcl.synthetic.anatomy import LUNG_TOP, Chest, ChestShape, Field, inside, smooth_noise
from medclip_dcl.synthetic.reports import FineFinding

Box = tuple[int, int, int, int]  # x, y, width, height, pixels
Path = Sequence[tuple[float, float]]  # anatomical x and y


@dataclass(frozen=True)
class DrawnImage:
    """Intensities in [0, 1], bright where little passes, and the exact boxes."""

    pixels: Field
    boxes: dict[FineFinding, list[Box]]


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
    x, y = anatomy.draw_coordinates(size_px, chance)
    chest = anatomy.project(x, y, anatomy.with_findings(body, findings))
    scene = Scene(chest, anatomy.attenuation(chest, chance), sign_chance)
    boxes = {}
    for finding, severity in findings.items():
        mask = SIGNS[finding.type](scene, finding, severity)
        parts = [mask * (x < 0), mask * (x > 0)] if finding.type == "edema" else [mask]
        boxes[finding] = [box_of(part) for part in parts]
    return DrawnImage(_expose(_mark(scene.image, exposure), exposure), boxes)


def draw_lateral(body: ChestShape, size_px: int, generator: np.random.Generator) -> DrawnImage:
    """Draw a plausible lateral image without findings."""
    x, y = anatomy.draw_coordinates(size_px, generator)
    trunk = np.sqrt(np.clip(1.6 * (1 - np.hypot(x / 0.9, (y - 0.15) / 1.55)), 0, 1))
    lung = inside((np.hypot((x - 0.05) / 0.58, (y + 0.1) / 0.78) - 1) * 0.5, 0.03)
    lung *= inside(y - 0.42 - 0.35 * (x - 0.1) ** 2 - 0.2 * x, 0.02)
    bone = inside(np.abs(x - 0.46 - 0.1 * np.cos(2.2 * (y - 0.1))) - 0.075, 0.02)
    heart = inside(np.hypot(x + 0.18, y - 0.22) - 0.3 * body.heart, 0.08)
    image = 0.55 * trunk - 0.34 * lung * (1 - 0.8 * heart) + 0.16 * bone
    return DrawnImage(_expose(image, generator), {})


def box_of(mask: Field) -> Box:
    """Bound the pixels of a mask from 30 % of its maximum on."""
    hit = mask >= 0.3 * mask.max()
    rows, columns = np.flatnonzero(hit.any(1)), np.flatnonzero(hit.any(0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def _mark(image: Field, generator: np.random.Generator) -> Field:
    """Put a lead side marker next to a shoulder: R on the left of the image, L on its right."""
    picture = Image.fromarray(image)
    letter, across = ("R", 0.06) if generator.random() < 0.5 else ("L", 0.9)
    corner = across * picture.width, generator.uniform(0.03, 0.1) * picture.height
    ImageDraw.Draw(picture).text(corner, letter, fill=0.95, font_size=picture.height / 16)
    return np.array(picture)


def _expose(image: Field, generator: np.random.Generator) -> Field:
    """Turn attenuation into what a detector stores: haze, gain, contrast curve and grain."""
    image = image + 0.022 * smooth_noise(image.shape, 3, generator)
    image = np.clip(image * generator.uniform(0.92, 1.1) + generator.uniform(-0.03, 0.04), 0.001, 1)
    grain = generator.standard_normal(image.shape, dtype=np.float32)
    image = image ** generator.uniform(0.85, 1.2) + generator.uniform(0.01, 0.02) * grain
    return np.clip(image, 0, 1).astype(np.float32)


@dataclass(frozen=True)
class Scene:
    """An image in the making; signs add to `image` in place."""

    chest: Chest
    image: Field
    rng: np.random.Generator

    def add(self, mask: Field, contrast: float) -> Field:
        """Add a mask, 0 to 1, times a contrast; return the mask."""
        self.image[:] += np.float32(contrast) * mask
        return mask

    def noise(self, cells: int) -> Field:
        """Draw smooth noise over the image."""
        return smooth_noise(self.image.shape, cells, self.rng)

    def place_of(self, finding: FineFinding) -> tuple[float, float]:
        """Draw a centre, anatomical x and y, inside the lung zone of a finding."""
        across, down = _ZONES[finding.zone]
        return _sign(finding) * self.rng.uniform(*across), self.rng.uniform(*down)


_ZONES = {
    "upper": ((0.30, 0.42), (-0.56, -0.40)),
    "mid": ((0.36, 0.56), (-0.16, 0.02)),
    "lower": ((0.48, 0.60), (0.20, 0.34)),  # not behind the heart
}


def _sign(finding: FineFinding) -> int:
    return -1 if finding.side == "right" else 1


def _effusion(scene: Scene, finding: FineFinding, severity: float) -> Field:
    chest = scene.chest
    rise = np.clip((chest.across - 0.2) / 0.6, 0, 1.2) ** 2.2
    fluid = inside(0.48 - 0.34 * severity - 0.32 * rise - chest.y, 0.03)
    cavity = inside(chest.across - chest.outer, 0.02) * inside(chest.inner - chest.across, 0.02)
    mask = fluid * cavity * (chest.y < anatomy.LUNG_BASE) * (chest.x * _sign(finding) > 0)
    scene.add(mask * chest.lungs, 0.36)
    return scene.add(mask, 0.06)


def _edema(scene: Scene, _finding: FineFinding, severity: float) -> Field:
    chest = scene.chest
    off = ((chest.across - 0.30) / 0.30) ** 2 + ((chest.y - 0.04) / 0.40) ** 2
    wing = np.exp(-(off**1.5)) * chest.lungs
    cloud = np.clip(0.75 + 0.25 * scene.noise(9), 0.2, 1.3)
    web = np.exp(-((scene.noise(34) / 0.22) ** 2))
    scene.add(wing * (cloud + 0.35 * web), 0.23 + 0.10 * severity)
    return wing


def _pneumonia(scene: Scene, finding: FineFinding, severity: float) -> Field:
    x, y = scene.place_of(finding)
    distance = np.hypot(scene.chest.x - x, scene.chest.y - y) / (0.17 + 0.08 * severity)
    patch = inside(distance + 0.22 * scene.noise(16) - 0.95, 0.45) * (0.2 + 0.8 * scene.chest.lungs)
    mottle = np.clip(0.85 + 0.18 * scene.noise(32), 0.3, 1.3)
    return scene.add(patch * mottle, 0.30 + 0.06 * severity)


def _pneumothorax(scene: Scene, finding: FineFinding, severity: float) -> Field:
    chest = scene.chest
    high = np.clip((0.35 - chest.y) / (0.35 - LUNG_TOP), 0, 1)
    gap = (0.10 + 0.12 * severity) * (0.35 + 0.65 * high) + 0.16 * high**6
    rim = chest.outer - gap  # the visceral pleura: where the collapsed lung ends
    half = (chest.x * _sign(finding) > 0) * chest.lungs * inside(chest.y - 0.42, 0.06)
    free = inside(rim - chest.across, 0.012) * half
    scene.image[:] *= 1 - 0.5 * free  # air alone: dark, and without markings
    scene.add(half * (1 - free), 0.05)  # the collapsed lung is denser
    scene.add(inside(np.abs(chest.across - rim) - 0.008, 0.008) * half, 0.15)
    return free


def _atelectasis(scene: Scene, finding: FineFinding, severity: float) -> Field:
    x, y = scene.place_of(finding)
    length, rise = 0.17 + 0.05 * severity, scene.rng.uniform(-0.06, 0.06)
    plate = scene.chest.distance_to([(x - length, y + rise), (x + length, y - rise)])
    return scene.add(inside(plate - 0.026, 0.012) * (0.2 + 0.8 * scene.chest.lungs), 0.3)


def _spot(
    scene: Scene, finding: FineFinding, severity: float, *, radius: float, contrast: float
) -> Field:
    x, y = scene.place_of(finding)
    size = radius * (1 + 0.4 * severity)
    distance = np.hypot(scene.chest.x - x, scene.chest.y - y)
    return scene.add(inside(distance - size, size / 4), contrast)


def _tube(scene: Scene, finding: FineFinding, _severity: float, *, path: Path) -> Field:
    # A side is that of the neck: below it, a tube lies where the vessel or the gullet is.
    *course, (x, y) = [(x * _sign(finding) if y < -0.5 else x, y) for x, y in path]
    course.append((x, y + scene.rng.uniform(-0.04, 0.04)))
    return scene.add(inside(scene.chest.distance_to(course) - 0.012, 0.007), 0.34)


def _pacemaker(scene: Scene, finding: FineFinding, _severity: float) -> Field:
    side = _sign(finding)
    x, y = side * scene.rng.uniform(0.56, 0.64), scene.rng.uniform(-0.46, -0.38)
    can = inside(scene.chest.distance_to([(x, y - 0.04), (x, y + 0.04)]) - 0.08, 0.006)
    path = [(x, y - 0.09), (side * 0.34, y - 0.16), (side * 0.12, -0.46), (-0.07, -0.3)]
    path += [(-0.10, 0.05), (-0.06, 0.3), (0.06, 0.42), (0.24, 0.47)]
    lead = inside(scene.chest.distance_to(path) - 0.01, 0.006)
    return scene.add(np.maximum(can, 0.75 * lead), 0.55)


def _wires(scene: Scene, _finding: FineFinding, _severity: float) -> Field:
    x, y = scene.chest.x / 1.5, scene.chest.y - scene.rng.uniform(-0.02, 0.02)
    loops = [np.abs(np.hypot(x, y + 0.4 - 0.15 * n) - 0.032) for n in range(6)]
    return scene.add(inside(np.minimum.reduce(loops) - 0.007, 0.005), 0.5)


_NECK_TO_CAVA = ((0.16, -1.0), (0.09, -0.6), (-0.085, -0.44), (-0.09, -0.02))
_NECK_TO_STOMACH = ((0.05, -1.1), (0.045, -0.5), (0.03, 0.0), (0.14, 0.58), (0.36, 0.74))

SIGNS: dict[str, Callable[[Scene, FineFinding, float], Field]] = {
    "cardiomegaly": lambda scene, _finding, _severity: scene.chest.heart,
    "enlarged aorta": lambda scene, _finding, _severity: scene.chest.aorta,
    "scoliosis": lambda scene, _finding, _severity: inside(np.abs(scene.chest.m) - 0.085, 0.01),
    "effusion": _effusion,
    "edema": _edema,
    "pneumonia": _pneumonia,
    "pneumothorax": _pneumothorax,
    "atelectasis": _atelectasis,
    "nodule": partial(_spot, radius=0.055, contrast=0.33),
    "granuloma": partial(_spot, radius=0.024, contrast=0.6),
    "pacemaker": _pacemaker,
    "central line": partial(_tube, path=_NECK_TO_CAVA),
    "endotracheal tube": partial(_tube, path=((-0.012, -1.1), (-0.012, -0.3))),
    "enteric tube": partial(_tube, path=_NECK_TO_STOMACH),
    "sternotomy wires": _wires,
}
"""Type of a finding -> what draws it with a severity in [0, 1] and returns the mask of where it
shows. The first three are in the body's shape already."""
