"""A model as others load it: transformers' own classes, or ONNX graphs.

    README.md           how to load it and the formula of the score, as code; how far it is from the
                        model package, measured when it was written

`--to transformers`:

    image/              ResNetModel (or the backbone's class), and its image processor
    text/               BertModel and its tokenizer
    projections.safetensors
                        maps of both into the shared space, and logit_scale, which is gamma**2

`--to onnx`:

    image.onnx          pixels -> unit vector of every region; any number of images, for a ResNet
                        of any size
    text.onnx           input_ids, attention_mask -> unit vector of every sentence
    similarity.onnx     regions, sentences -> score of every sentence on every image
    text/               tokenizer
    model.json          size and scaling of the input, longest sentence, logit_scale

No file says whom the model was trained on. A vocabulary that was learned from reports still
consists of pieces of them.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from medclip_dcl.core.artifact import Artifact, ArtifactType, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.core.files import write_bytes, write_text
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.model_package import TEXT
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.engines import Method, Part, Run, encoder_parts, largest_difference
from medclip_dcl.models.image_encoder import MEAN, SPREAD

EXPORT = ArtifactType("export", 1, "export")

_ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # that write graphs and run them

Format = Literal["transformers", "onnx"]

LARGEST_DIFFERENCE = 1e-4
"""Between answers of the export and ours, of vectors by their length; beyond, it is refused."""

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def export_formats(
    model: Path, to: Format, folder: Path, tolerance: float = LARGEST_DIFFERENCE
) -> Artifact:
    """Write a model package for another library, after every byte of it was checked.

    Args:
        model: folder of the package.
        to: who reads it.
        folder: receives the export whole, or is not there; must not exist.
        tolerance: largest difference to our own answers.

    Returns:
        The export; its summary holds the largest difference of each part to our own answers.

    Raises:
        ConfigError: the folder exists, or a package that `to` needs is missing.
        ArtifactError: the model is missing or damaged.
        CheckpointError: an answer of the export is farther from ours than `tolerance`.
    """
    if to not in get_args(Format):
        raise ConfigError(f"an export is for one of {', '.join(get_args(Format))}, not {to!r}")
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a folder that does not, or remove it")
    missing = [name for name in _ONNX_PACKAGES if to == "onnx" and find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an export to onnx needs {', '.join(missing)}; run pip install '.[onnx]' in the "
            "checkout"
        )
    predictor = load(model, "cpu")
    encoders = predictor.model
    text = encoders.text
    is_bert = isinstance(text.backbone, BertModel) and isinstance(text.projection, nn.Linear)
    is_plain = is_bert and text.pooling == "cls" and encoders.image.kind != "vit"
    if to == "transformers" and not is_plain:
        raise ConfigError(
            "an export to transformers has a map of regions, [CLS] of BERT and a linear map each; "
            "this model has other encoders: export it to onnx"
        )
    fingerprint = make_fingerprint(EXPORT, {"to": to}, {"model": predictor.digest})
    with write_artifact(folder, EXPORT, fingerprint) as writer:
        if writer.resumed:  # a library that was killed left files under names of its own
            shutil.rmtree(writer.directory)
        write = _write_transformers if to == "transformers" else _write_onnx
        (writer.directory / TEXT).mkdir(parents=True, exist_ok=True)
        for name in _TOKENIZER:
            write_bytes(writer.directory / TEXT / name, (model / TEXT / name).read_bytes())
        differences = write(predictor, writer.directory)
        for part, difference in differences.items():
            if not difference <= tolerance:  # NaN included
                shutil.rmtree(writer.directory)
                raise CheckpointError(
                    f"{part} of the export differs from the model by {difference:.2g}, more than "
                    f"{tolerance:g}; nothing was written; try other versions of {to}"
                )
        write_text(writer.directory / "README.md", _readme(predictor, to, differences))
        return writer.commit(differences)


# --- transformers


def _write_transformers(predictor: Predictor, folder: Path) -> dict[str, float]:
    model, image = predictor.model, predictor.config.model.image
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.image.backbone.save_pretrained(folder / "image")
    model.text.backbone.save_pretrained(folder / TEXT)
    ViTImageProcessorPil(
        size={"height": image.input_px, "width": image.input_px},
        resample=Image.Resampling.BILINEAR,
        image_mean=[MEAN],
        image_std=[SPREAD],
        do_convert_rgb=False,
    ).save_pretrained(folder / "image")
    projections = {
        "image.weight": model.region_projection.weight,
        "image.bias": model.region_projection.bias,
        "text.weight": model.text.projection.weight,
        "text.bias": model.text.projection.bias,
        "logit_scale": model.gamma.square(),
    }
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in projections.items()},
        folder / "projections.safetensors",
    )
    for file in folder.rglob("*.safetensors"):  # are made for one user; the umask decides here
        shutil.copymode(folder / TEXT / "config.json", file)
    return _transformers_differences(model, image.input_px, folder)


def _transformers_differences(model: DualEncoder, px: int, folder: Path) -> dict[str, float]:
    """Load what was written as a stranger would, and compare its vectors with ours."""
    maps = model.image.kind == "backbone"
    tower = type(model.image.backbone).from_pretrained(folder / "image", local_files_only=True)
    text = BertModel.from_pretrained(folder / TEXT, add_pooling_layer=False, local_files_only=True)
    head = load_file(folder / "projections.safetensors")

    def regions(pixels: Tensor) -> Tensor:
        answer = tower(pixels)
        cells = answer.feature_maps[-1] if maps else answer.last_hidden_state
        return _projected(cells.permute(0, 2, 3, 1), head, "image")

    def sentences(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = text(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return _projected(states[:, 0], head, "text")

    parts = encoder_parts(model, px, px)
    return {
        "image": largest_difference(regions, parts["image"]),
        "text": largest_difference(sentences, parts["text"]),
    }


def _projected(states: Tensor, head: Mapping[str, Tensor], name: str) -> Tensor:
    mapped = functional.linear(states, head[f"{name}.weight"], head[f"{name}.bias"])
    return functional.normalize(mapped, dim=-1)


# --- ONNX


def _write_onnx(predictor: Predictor, folder: Path) -> dict[str, float]:
    model, settings = predictor.model, predictor.config.model
    facts = {
        "input_px": settings.image.input_px,
        "mean": MEAN,
        "spread": SPREAD,
        "max_tokens": settings.text.max_tokens,
        "logit_scale": float(model.gamma.square()),
    }
    write_text(folder / "model.json", json.dumps(facts, indent=1, sort_keys=True) + "\n")
    # A ResNet takes any size; another backbone may have its grid in its weights.
    is_resnet, px = model.image.kind.startswith("resnet"), settings.image.input_px
    tall = px + model.image.stride if is_resnet else px
    parts = encoder_parts(model, tall, px) | {"similarity": _similarity(model)}
    differences = {}
    for name, part in parts.items():
        axes, output = _GRAPHS[name]
        if name == "image" and is_resnet:
            axes = {"pixels": {**axes["pixels"], 2: "height", 3: "width"}}
        _write_graph(part, axes, output, folder / f"{name}.onnx")
        differences[name] = largest_difference(_run_onnxruntime(folder / f"{name}.onnx"), part)
    return differences


_WORDS = {0: "texts", 1: "tokens"}
_GRAPHS: dict[str, tuple[dict[str, dict[int, str]], str]] = {
    "image": ({"pixels": {0: "images"}}, "regions"),
    "text": ({"input_ids": _WORDS, "attention_mask": _WORDS}, "sentences"),
    "similarity": (
        {"regions": {0: "images", 1: "rows", 2: "columns"}, "sentences": {0: "texts"}},
        "scores",
    ),
}
"""Graph -> inputs, with the axes that may have any length, and the name of its output."""


def _similarity(model: DualEncoder) -> Part:
    rng, dim = torch.Generator().manual_seed(0), model.similarity.dim
    cases = tuple(
        tuple(
            functional.normalize(torch.randn(*shape, dim, generator=rng), dim=-1)
            for shape in ((images, 3, 4), (texts,))
        )
        for images, texts in ((2, 6), (1, 3), (3, 8))
    )
    return Part(Method(model, model.score), cases)


def _write_graph(
    part: Part, axes: Mapping[str, Mapping[int, str]], output: str, file: Path
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        # of torchvision, which is left out on purpose, and of changes to come
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            part.module,
            part.cases[0],
            dynamo=True,
            opset_version=20,
            input_names=list(axes),
            output_names=[output],
            dynamic_shapes=tuple(map(dict, axes.values())),
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # lines of our code, with the folders that it is in
    program.save(str(file))


def _run_onnxruntime(file: Path) -> Run:
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, given)[0])

    return run


# --- The page

_SCORES = {
    "mean": "scores = h.mean(dim=1)",
    "global": "scores = normalize(regions.mean(dim=1), dim=-1) @ texts.T",
    "lse": "scores = {tau} * ((h / {tau}).logsumexp(dim=1) - math.log(h.shape[1]))",
    "nl": """\
best = regions[torch.arange(len(regions))[:, None], h.argmax(dim=1)]  # images, texts, dim
attention = (best @ regions.transpose(1, 2) / {tau}).softmax(dim=-1)
scores = (normalize(attention @ regions, dim=-1) * texts).sum(dim=-1)""",
}
_SCORES["biovil"] = _SCORES["cxr_clip"] = _SCORES["global"]
_SCORES["lse_nl"] = (
    _SCORES["lse"].replace("scores", "local")
    + "\n"
    + _SCORES["nl"].replace("scores", "non_local")
    + "\nscores = (local + non_local) / 2"
)

# One statement for grey of 8 and 16 bits: `convert("L")` alone would clip 16 bits to white.
_IMAGE = """\
# PNG or JPEG -> 8-bit grey from black to white
image = (g := Image.open(file).convert("F")).point(\
lambda v: (v - g.getextrema()[0]) * (255 / max(1, g.getextrema()[1] - g.getextrema()[0])) + 0.5\
).convert("L")
with Image.open(file) as stored:
    if stored.mode not in {"L", "I;16"}:  # luma; transparency is black
        black = Image.new("RGBA", stored.size, "black")
        image = Image.alpha_composite(black, stored.convert("RGBA")).convert("L")
        image = ImageOps.autocontrast(image)"""

_SQUARES = {
    "": 'image = image.resize((facts["input_px"], facts["input_px"]), Image.Resampling.BILINEAR)',
    "stretch": "image = image.resize(({size}, {size}), Image.Resampling.{filter})",
    "crop": """\
shorter = min(image.size)
image = image.resize([{side} * edge // shorter for edge in image.size], Image.Resampling.{filter})
left, top = ({margin} for edge in image.size)
image = image.crop((left, top, left + {size}, top + {size}))""",
    "pad": """\
ratio = {size} / max(image.size)
resized = image.resize([int(edge * ratio) for edge in image.size], Image.Resampling.{filter})
image = Image.new("L", ({size}, {size}))
image.paste(resized, [({size} - edge) // 2 for edge in resized.size])
image = image.resize((facts["input_px"], facts["input_px"]), Image.Resampling.BICUBIC)""",
}
_FITTED = """\
Images become inputs as the checkpoint's maker makes them{but}. A DICOM file needs its look-up
tables, MONOCHROME1 turned round and padding left out: write `medclip_dcl.open_image(file).pixels`
into a PNG file of 8 bits."""


def _square_code(images: ImagesConfig) -> str:
    fit, size = images.fit, images.size_px
    if fit is None:
        return _SQUARES[""]
    margin = f"round((edge - {size}) / 2)" if fit.half_even else f"(edge - {size}) // 2"
    names = {"size": size, "filter": fit.filter.upper(), "side": fit.resized_px or size}
    return _SQUARES[fit.how].format(**names, margin=margin)


_TRANSFORMERS = """\
import math

import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import linear, normalize
from transformers import AutoImageProcessor, AutoTokenizer, BertModel, {tower}

processor = AutoImageProcessor.from_pretrained(f"{{folder}}/image")
image_tower = {tower}.from_pretrained(f"{{folder}}/image")
tokenizer = AutoTokenizer.from_pretrained(f"{{folder}}/text")
text_tower = BertModel.from_pretrained(f"{{folder}}/text", add_pooling_layer=False)
maps = load_file(f"{{folder}}/projections.safetensors")

{image}
pixels = processor(image, return_tensors="pt")["pixel_values"]
cells = image_tower(pixels).{features}.flatten(2).transpose(1, 2)
regions = normalize(linear(cells, maps["image.weight"], maps["image.bias"]), dim=-1)
tokens = tokenizer(
    sentences, padding=True, truncation=True, max_length={max_tokens}, return_tensors="pt"
)
states = text_tower(**tokens).last_hidden_state[:, 0]
texts = normalize(linear(states, maps["text.weight"], maps["text.bias"]), dim=-1)

h = regions @ texts.T  # images, regions, texts: cosines
{score}
logits = maps["logit_scale"] * scores  # images, texts"""

_ONNX = """\
import json

import numpy as np
from onnxruntime import InferenceSession
from PIL import Image
from transformers import AutoTokenizer

with open(f"{{folder}}/model.json") as stream:
    facts = json.load(stream)
image_tower, text_tower, similarity = (
    InferenceSession(f"{{folder}}/{{name}}.onnx") for name in ("image", "text", "similarity")
)
tokenizer = AutoTokenizer.from_pretrained(f"{{folder}}/text")

{image}
{square}
pixels = (np.asarray(image, dtype=np.float32) / 255 - facts["mean"]) / facts["spread"]
(regions,) = image_tower.run(None, {{"pixels": pixels[None, None].astype(np.float32)}})
tokens = tokenizer(
    sentences, padding=True, truncation=True, max_length=facts["max_tokens"], return_tensors="np"
)
words = {{name: tokens[name] for name in ("input_ids", "attention_mask")}}
(texts,) = text_tower.run(None, words)
(scores,) = similarity.run(None, {{"regions": regions, "sentences": texts}})
logits = facts["logit_scale"] * scores.T  # images, texts"""

_PREPARED = """\
This is nearly how images were prepared for training, not quite:

- The package stretches the image to {size} x {size} pixels of 8 bits first, and that to
  {px} x {px} in float32; here it is one step of 8 bits.
- A DICOM file needs its look-up tables, MONOCHROME1 turned round and padding left out. The package
  reads it with `voi: {voi}`; no image processor does. Write `medclip_dcl.open_image(file).pixels`
  into a 16-bit PNG file.{equalize}"""

_PAGE = """\
# Model {digest:.12} for {to}

Research use only. Not a medical device. Written by `medclip export`, and compared with the model
package on made-up inputs: largest difference {differences}.

```python
{code}
```

The score of a finding is the softmax over the logits of its two prompts. The package's calibration
of scores, its offsets of prompts and its range of images are not part of an export.

## The image

{prepared}

The vocabulary in `text/` may have been learned from the training reports. It then consists of
pieces of them: look through it before it leaves your institution.
"""


def _readme(predictor: Predictor, to: Format, differences: Mapping[str, float]) -> str:
    settings, images = predictor.config.model, predictor.config.images
    similarity = settings.similarity
    image = predictor.model.image
    template = _TRANSFORMERS if to == "transformers" else _ONNX
    is_spread = images.fit is None or images.fit.scaled
    code = template.format(
        image=_IMAGE if is_spread else 'image = Image.open(file).convert("L")',
        square=_square_code(images),
        tower=type(image.backbone).__name__,
        features="feature_maps[-1]" if image.kind == "backbone" else "last_hidden_state",
        max_tokens=settings.text.max_tokens,
        score=_SCORES[similarity.kind].format(**similarity.model_dump()),
    )
    if images.fit is None:
        equalized = "\n- Its histogram is equalised before that." if images.equalize else ""
        prepared = _PREPARED.format(
            size=images.size_px, px=settings.image.input_px, voi=images.voi, equalize=equalized
        )
    else:
        is_padded = images.fit.how == "pad"
        prepared = _FITTED.format(but=", but for the last step of 8 bits" if is_padded else "")
    return _PAGE.format(
        digest=predictor.digest,
        to={"transformers": "transformers", "onnx": "ONNX Runtime"}[to],
        differences=", ".join(f"{value:.1g} ({part})" for part, value in differences.items()),
        code=code,
        prepared=prepared,
    )
