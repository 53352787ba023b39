import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from medclip_dcl.models.similarity import roi_align


def reference(
    features: torch.Tensor, boxes: torch.Tensor, images: torch.Tensor, scale: float
) -> torch.Tensor:
    """The ONNX operator RoiAlign, half-pixel, adaptive sampling, run by onnxruntime."""
    node = helper.make_node(
        "RoiAlign",
        ["features", "boxes", "images"],
        ["pooled"],
        output_height=1,
        output_width=1,
        sampling_ratio=0,
        spatial_scale=scale,
        mode="avg",
        coordinate_transformation_mode="half_pixel",
    )
    graph = helper.make_graph(
        [node],
        "pool",
        [
            helper.make_tensor_value_info("features", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("images", TensorProto.INT64, None),
        ],
        [helper.make_tensor_value_info("pooled", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feed = {"features": features.numpy(), "boxes": boxes.numpy(), "images": images.numpy()}
    return torch.from_numpy(session.run(None, feed)[0]).flatten(1)


def random_boxes(count: int, low: float, high: float) -> torch.Tensor:
    rng = np.random.default_rng(0)
    corner = rng.uniform(low, high, (count, 2))
    size = rng.uniform(3, 200, (count, 2))
    return torch.from_numpy(np.hstack([corner, corner + size])).float()


@pytest.mark.parametrize(("low", "high"), [(0, 280), (-150, 560)], ids=["inside", "beyond"])
def test_pooling_equals_onnxruntime(low: float, high: float) -> None:
    features = torch.randn(3, 4, 15, 13)
    boxes = random_boxes(60, low, high)
    images = torch.arange(60) % 3
    torch.testing.assert_close(
        roi_align(features, boxes / 32, images),
        reference(features, boxes, images, 1 / 32),
        atol=1e-5,
        rtol=0,
    )


def test_linear_map_pools_to_its_value_at_the_box_centre() -> None:
    rows, columns = torch.meshgrid(torch.arange(15.0), torch.arange(15.0), indexing="ij")
    features = (2 * rows - 3 * columns + 1)[None, None].double()
    boxes = torch.tensor([[64.0, 100.0, 300.0, 333.0], [100.0, 40.0, 119.0, 400.0]]).double()
    centre_column = (boxes[:, 0] + boxes[:, 2]) / 2 / 32 - 0.5
    centre_row = (boxes[:, 1] + boxes[:, 3]) / 2 / 32 - 0.5
    pooled = roi_align(features, boxes / 32, torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(pooled.flatten(), 2 * centre_row - 3 * centre_column + 1)


def test_box_around_one_cell_pools_that_cell() -> None:
    features = torch.arange(16.0).reshape(1, 1, 4, 4)
    box = torch.tensor([[64.0, 32.0, 96.0, 64.0]])  # column 2, row 1 at 32 px a cell
    assert roi_align(features, box / 32, torch.tensor([0])).item() == 6.0


def test_gradient_reaches_the_map() -> None:
    features = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    box = torch.tensor([[10.0, 5.0, 77.0, 90.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda f: roi_align(f, box / 32, torch.tensor([0])), (features,)
    )
