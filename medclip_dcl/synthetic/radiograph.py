"""Radiographs: from a body and its findings to the intensities of one image, and exact boxes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_dcl.synthetic import anatomy
from medclip_dcl.synthetic.anatomy import (
    LUNG_BASE,
    LUNG_TOP,
    Box,
    Canvas,
    Chest,
    ChestShape,
    Field,
    Pose,
    box_of,
    distance_to_path,
    inside,
    make_canvas,
    smooth_noise,
)
from medclip_dcl.synthetic.findings import FineFinding


@dataclass(frozen=True)
class DrawnImage:
    """Intensities in [0, 1], bright where little passes, and the exact boxes."""

    pixels: Field
    boxes: dict[FineFinding, list[Box]]

    def facts(self) -> dict[str, Any]:
        """Return what the tables need: height and width, pixels, and boxes by finding."""
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
    image -= 0.07 * anatomy.airways(canvas, chest)
    image += 0.085 * anatomy.spine(canvas, chest) * tissue * (1 - 0.4 * belly)
    image += 0.095 * anatomy.ribs(canvas, chest) * (0.4 + 0.6 * chest.lung_outline)
    image += 0.11 * anatomy.clavicles(canvas, chest) * tissue
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


_Area = tuple[slice, slice]
_ZONES = {"upper": (-0.56, -0.40), "mid": (-0.16, 0.02), "lower": (0.20, 0.34)}


@dataclass(frozen=True)
class Scene:
    """An image in the making; signs add to `image` in place."""

    canvas: Canvas
    chest: Chest
    image: Field
    generator: np.random.Generator

    def between(self, low: float, high: float) -> float:
        """Draw a number uniformly from a range."""
        return float(self.generator.uniform(low, high))

    def position_of(self, finding: FineFinding) -> tuple[float, float]:
        """Draw a centre, anatomical x and y, inside the lung zone of a finding."""
        low, high = _ZONES[finding.zone]
        reach = {"upper": (0.30, 0.42), "mid": (0.36, 0.56), "lower": (0.38, 0.58)}[finding.zone]
        if finding.side == "left" and finding.zone == "lower":
            reach = (0.52, 0.62)
        return _sign(finding) * self.between(*reach), self.between(low, high)

    def add(self, area: _Area, mask: Field, contrast: float) -> list[Box]:
        """Add a mask, 0 to 1, times a contrast to an area of the image, and bound it."""
        self.image[area] += np.float32(contrast) * mask
        return _bounds(mask, area)

    def offsets(self, x: float, y: float, reach: float) -> tuple[_Area, Field, Field]:
        """Area around an anatomical point, and how far its pixels lie from it in x and y."""
        area = self.canvas.window(x - reach, y - reach, x + reach, y + reach)
        return area, self.canvas.x[area] - x, self.canvas.y[area] - y


def _sign(finding: FineFinding) -> int:
    return -1 if finding.side == "right" else 1


def _half(scene: Scene, finding: FineFinding) -> Field:
    """1 on the finding's side of the image."""
    return np.asarray(scene.canvas.x * _sign(finding) > 0, dtype=np.float32)


def _bounds(mask: Field, area: _Area | None = None) -> list[Box]:
    box = box_of(mask, area)
    return [box] if box else []


def _aerated(scene: Scene, area: _Area) -> Field:
    """Weight of a lung opacity: full where there is air to replace, little behind the heart."""
    lungs, outline = scene.chest.lungs[area], scene.chest.lung_outline[area]
    return np.asarray(0.05 + 0.2 * outline + 0.75 * lungs, dtype=np.float32)


def _cardiomegaly(scene: Scene, _finding: FineFinding, _severity: float) -> list[Box]:
    return _bounds(scene.chest.heart)


def _aorta(scene: Scene, _finding: FineFinding, _severity: float) -> list[Box]:
    return _bounds(scene.chest.aorta)


def _diaphragm(scene: Scene, finding: FineFinding, _severity: float) -> list[Box]:
    chest, canvas = scene.chest, scene.canvas
    dome = inside(-chest.domes, 0.01) * inside(chest.across - chest.outer, 0.01)
    dome *= inside(0.14 - chest.across, 0.01) * (canvas.y < LUNG_BASE - 0.12)
    return _bounds(dome * _half(scene, finding))


def _scoliosis(scene: Scene, _finding: FineFinding, _severity: float) -> list[Box]:
    return _bounds(inside(np.abs(scene.chest.m) - 0.085, 0.01) * (np.abs(scene.canvas.y) < 0.8))


def _effusion(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    chest, canvas = scene.chest, scene.canvas
    level = 0.36 - 0.34 * severity
    rise = np.clip((chest.across - 0.2) / 0.6, 0, 1.2)
    fluid = inside(level + 0.12 - 0.32 * rise**2.2 - canvas.y, 0.03)
    cavity = inside(chest.across - chest.outer, 0.02) * inside(chest.inner - chest.across, 0.02)
    mask = fluid * cavity * (canvas.y < LUNG_BASE) * _half(scene, finding)
    lost = mask * chest.lungs
    scene.image[:] += np.float32(0.40) * lost * chest.depth + np.float32(0.06) * mask
    return _bounds(mask)


def _edema(scene: Scene, _finding: FineFinding, severity: float) -> list[Box]:
    chest, canvas = scene.chest, scene.canvas
    dx, dy = (chest.across - 0.30) / 0.30, (canvas.y - 0.04) / 0.40
    wing = np.exp(-((dx * dx + dy * dy) ** 1.5)).astype(np.float32) * chest.lungs
    shape = canvas.x.shape
    web = np.exp(-((smooth_noise(shape, (34, 34), scene.generator) / 0.22) ** 2))
    cloud = np.clip(0.75 + 0.25 * smooth_noise(shape, (9, 9), scene.generator), 0.2, 1.3)
    scene.image[:] += np.float32(0.23 + 0.10 * severity) * wing * cloud
    scene.image[:] += np.float32(0.08 + 0.03 * severity) * web.astype(np.float32) * wing
    return _bounds(wing * (canvas.x < 0)) + _bounds(wing * (canvas.x > 0))


def _pneumonia(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    x, y = scene.position_of(finding)
    radius = 0.17 + 0.08 * severity
    area, dx, dy = scene.offsets(x, y, 1.9 * radius)
    shape = dx.shape
    edge = np.hypot(dx / (1.1 * radius), dy / radius) + 0.22 * smooth_noise(
        shape, (5, 5), scene.generator
    )
    patch = inside(edge - 0.95, 0.45) * _aerated(scene, area)
    mottle = 0.85 + 0.18 * smooth_noise(shape, (13, 13), scene.generator)
    return scene.add(area, patch * np.clip(mottle, 0.3, 1.3), 0.30 + 0.06 * severity)


def _pneumothorax(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    chest, canvas = scene.chest, scene.canvas
    high = np.clip((0.35 - canvas.y) / (0.35 - LUNG_TOP), 0, 1)
    gap = (0.10 + 0.12 * severity) * (0.35 + 0.65 * high) + 0.16 * high**6
    rim = chest.outer - gap  # the visceral pleura: where the collapsed lung ends
    half = _half(scene, finding) * chest.lungs * inside(canvas.y - 0.42, 0.06)
    free = inside(rim - chest.across, 0.012) * half
    line = inside(np.abs(chest.across - rim) - 0.008, 0.008) * half
    air = np.float32(0.05)
    scene.image[:] += free * (np.minimum(scene.image, air) * 0.6 + 0.02 - 0.55 * scene.image)
    scene.image[:] += np.float32(0.15) * line
    inner = half * (1 - free)
    scene.image[:] += np.float32(0.05) * inner
    return _bounds(free)


def _atelectasis(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    x, y = scene.position_of(finding)
    y += 0.05 if finding.zone == "lower" else 0.0
    length, slope = 0.17 + 0.05 * severity, scene.between(-0.35, 0.35)
    area, dx, _ = scene.offsets(x, y, 1.4 * length)
    mask = np.zeros(dx.shape, dtype=np.float32)
    for shift in (0.0, 0.055)[: 1 + (severity > 0.4)]:
        path = [(x - length, y + shift + slope * length), (x + length, y + shift - slope * length)]
        distance = distance_to_path(scene.canvas, area, path)
        np.maximum(mask, inside(distance - 0.016, 0.010), out=mask)
    return scene.add(area, mask * (0.2 + 0.8 * scene.chest.lungs[area]), 0.28)


def _nodule(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    radius = 0.055 + 0.025 * severity
    area, dx, dy = scene.offsets(*scene.position_of(finding), 1.5 * radius)
    return scene.add(area, inside(np.hypot(dx, dy) - radius, 0.018), 0.33)


def _granuloma(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    radius = 0.022 + 0.008 * severity
    area, dx, dy = scene.offsets(*scene.position_of(finding), 3 * radius)
    return scene.add(area, inside(np.hypot(dx, dy) - radius, 0.006), 0.62)


def _cavity(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    x, y = scene.position_of(finding)
    y += 0.06
    radius = 0.11 + 0.03 * severity
    area, dx, dy = scene.offsets(x, y, 1.4 * radius)
    distance = np.hypot(dx, dy)
    mass = inside(distance - radius, 0.014)
    hollow = inside(distance - 0.6 * radius, 0.012) * inside(dy - 0.25 * radius, 0.008)
    scene.image[area] -= np.float32(0.34) * hollow
    return scene.add(area, mass, 0.40)


def _fracture(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    y = scene.between(0.1, 0.28) if finding.zone == "lower" else scene.between(-0.38, -0.18)
    row = np.clip((y - LUNG_TOP) / (LUNG_BASE - LUNG_TOP), 0, 1)
    reach = scene.chest.body.wall * np.sqrt(1 - (1 - row) ** 2.5)
    x = _sign(finding) * (reach - 0.05)
    area, dx, _ = scene.offsets(x, y, 0.16)
    tilt = 0.9 * _sign(finding)
    callus: Field = np.zeros(dx.shape, dtype=np.float32)
    for along, step in ((-0.055, -0.022), (0.055, 0.022)):
        centre = (x + along * _sign(finding), y + along * 0.9 + step)
        ends = [
            (centre[0] - 0.045, centre[1] - 0.045 * tilt),
            (centre[0] + 0.045, centre[1] + 0.045 * tilt),
        ]
        distance = distance_to_path(scene.canvas, area, ends)
        np.maximum(callus, inside(distance - 0.022, 0.010), out=callus)
    gap = distance_to_path(
        scene.canvas, area, [(x - 0.05 * tilt, y + 0.05), (x + 0.05 * tilt, y - 0.05)]
    )
    crack = inside(gap - 0.007, 0.006)
    scene.image[area] -= np.float32(0.16) * crack
    return scene.add(area, callus * (1 - crack), 0.26 + 0.06 * severity)


def _pacemaker(scene: Scene, finding: FineFinding, _severity: float) -> list[Box]:
    side = _sign(finding)
    x, y = side * scene.between(0.56, 0.64), scene.between(-0.46, -0.38)
    area = scene.canvas.window(min(x, 0.0) - 0.15, y - 0.25, max(x, 0.25) + 0.15, 0.6)
    u, v = np.abs(scene.canvas.x[area] - x), np.abs(scene.canvas.y[area] - y)
    corner = np.hypot(np.clip(u - 0.055, 0, None), np.clip(v - 0.075, 0, None))
    can = inside(corner - 0.035, 0.006)
    path = [(x, y - 0.09), (side * 0.34, y - 0.16), (side * 0.12, -0.46), (-0.07, -0.3)]
    path += [(-0.10, 0.05), (-0.06, 0.3), (0.06, 0.42), (0.24, 0.47)]
    lead = inside(distance_to_path(scene.canvas, area, path) - 0.009, 0.006)
    return scene.add(area, np.maximum(can, 0.75 * lead), 0.55)


def _central_line(scene: Scene, finding: FineFinding, _severity: float) -> list[Box]:
    side = _sign(finding)
    lift = scene.between(-0.03, 0.03)
    path = [(side * 0.16, -1.0), (side * 0.13, -0.8 + lift), (side * 0.09, -0.6)]
    path += [(-0.085, -0.44), (-0.095, -0.2), (-0.09, scene.between(-0.08, 0.04))]
    return _tube(scene, path, 0.013, 0.34)


def _endotracheal(scene: Scene, _finding: FineFinding, _severity: float) -> list[Box]:
    tip = scene.between(-0.34, -0.26)
    walls = []
    for offset in (-0.034, 0.010):
        path = [(offset, -1.1), (offset - 0.004, tip - 0.02 * (offset > 0))]
        walls += _tube(scene, path, 0.010, 0.34)
    left = min(box[0] for box in walls)
    top = min(box[1] for box in walls)
    right = max(box[0] + box[2] for box in walls)
    bottom = max(box[1] + box[3] for box in walls)
    return [(left, top, right - left, bottom - top)]


def _enteric(scene: Scene, _finding: FineFinding, _severity: float) -> list[Box]:
    swing = scene.between(-0.02, 0.02)
    path = [(0.05, -1.1), (0.045, -0.5), (0.03 + swing, 0.0), (0.07, 0.4)]
    path += [(0.14, 0.58), (0.26, 0.68), (0.36, scene.between(0.7, 0.78))]
    return _tube(scene, path, 0.012, 0.32)


def _tube(
    scene: Scene, path: list[tuple[float, float]], radius: float, contrast: float
) -> list[Box]:
    xs, ys = [x for x, _ in path], [y for _, y in path]
    area = scene.canvas.window(min(xs) - 0.05, min(ys), max(xs) + 0.05, max(ys) + 0.05)
    distance = distance_to_path(scene.canvas, area, path)
    return scene.add(area, inside(distance - radius, 0.007), contrast)


def _wires(scene: Scene, _finding: FineFinding, _severity: float) -> list[Box]:
    area = scene.canvas.window(-0.12, -0.5, 0.12, 0.5)
    x, y = scene.canvas.x[area] - scene.between(-0.015, 0.015), scene.canvas.y[area]
    mask = np.zeros(x.shape, dtype=np.float32)
    for centre in np.linspace(-0.4, 0.34, 6) + scene.between(-0.02, 0.02):
        loop = np.abs(np.hypot(x / 1.5, y - centre) - 0.032)
        np.maximum(mask, inside(loop - 0.007, 0.005), out=mask)
    return scene.add(area, mask, 0.5)


def _hernia(scene: Scene, _finding: FineFinding, severity: float) -> list[Box]:
    x, y = scene.between(0.03, 0.08), scene.between(0.30, 0.36)
    radius = 0.14 + 0.03 * severity
    area, dx, dy = scene.offsets(x, y, 1.4 * radius)
    distance = np.hypot(dx / 1.15, dy)
    pouch = inside(distance - radius, 0.012)
    air = inside(distance - 0.82 * radius, 0.012) * inside(dy - 0.02, 0.008)
    scene.image[area] -= np.float32(0.42) * air
    return scene.add(area, pouch, 0.12)


def _hilum(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    x, y = _sign(finding) * 0.21, scene.between(-0.1, -0.03)
    area, dx, dy = scene.offsets(x, y, 0.26)
    lumps: Field = np.zeros(dx.shape, dtype=np.float32)
    for u, v, radius in (
        (0, 0, 0.085),
        (0.045 * _sign(finding), -0.075, 0.06),
        (0.02, 0.085, 0.065),
    ):
        size = radius * (1 + 0.25 * severity)
        np.maximum(lumps, inside(np.hypot(dx - u, dy - v) - size, 0.018), out=lumps)
    return scene.add(area, lumps * (0.3 + 0.7 * scene.chest.lungs[area]), 0.30)


def _apical(scene: Scene, finding: FineFinding, severity: float) -> list[Box]:
    chest, canvas = scene.chest, scene.canvas
    depth = 0.62 - 0.08 * severity + 0.03 * smooth_noise(canvas.x.shape, (20, 20), scene.generator)
    cap = inside(canvas.y + depth, 0.025) * chest.lung_outline * _half(scene, finding)
    cap *= 0.5 + 0.5 * inside(chest.outer - 0.06 - chest.across, 0.05)
    scene.image[:] += np.float32(0.27) * cap
    return _bounds(cap)


SIGNS: dict[str, Callable[[Scene, FineFinding, float], list[Box]]] = {
    "cardiomegaly": _cardiomegaly,
    "effusion": _effusion,
    "edema": _edema,
    "pneumonia": _pneumonia,
    "pneumothorax": _pneumothorax,
    "atelectasis": _atelectasis,
    "pacemaker": _pacemaker,
    "central line": _central_line,
    "endotracheal tube": _endotracheal,
    "enteric tube": _enteric,
    "sternotomy wires": _wires,
    "nodule": _nodule,
    "granuloma": _granuloma,
    "cavitary mass": _cavity,
    "rib fracture": _fracture,
    "hiatal hernia": _hernia,
    "scoliosis": _scoliosis,
    "elevated hemidiaphragm": _diaphragm,
    "enlarged aorta": _aorta,
    "hilar enlargement": _hilum,
    "apical thickening": _apical,
}
"""Type of a finding -> what draws it: scene, finding and severity in [0, 1]."""
