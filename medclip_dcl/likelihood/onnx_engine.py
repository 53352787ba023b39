"""BERT on ONNX Runtime's float32 kernels, which pack each weight matrix once for the processor.

On processors whose wide vector units torch's own matrix products leave idle this is twice
as fast; elsewhere the trimmed graph alone is worth it.
"""

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import BertForMaskedLM

from medclip_dcl.likelihood.bert_graph import build_graph
from medclip_dcl.likelihood.masked_rows import MaskedCopies


class OnnxEngine:
    """Runs BERT's trimmed graph on the CPU.

    Weights are packed when it is made, beside the model's own: a model that is trained
    on needs another engine.

    Args:
        model: a model that `bert_graph` accepts, in eval mode whenever it scores.
        threads: threads of one forward pass.

    Raises:
        ImportError: onnx or onnxruntime is not installed.
    """

    def __init__(self, model: BertForMaskedLM, threads: int) -> None:
        runtime = import_module("onnxruntime")
        graph = build_graph(model)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # it keeps a plan for every shape that was seen
        options.enable_cpu_mem_arena = False  # it keeps the largest of all shapes
        options.log_severity_level = 3  # errors
        values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in graph.weights.values()]
        options.add_external_initializers(list(graph.weights), values)
        self._session: Any = runtime.InferenceSession(
            graph.model, options, providers=["CPUExecutionProvider"]
        )
        self._embeddings: Any = model.bert.embeddings

    def log_probs(self, copies: MaskedCopies) -> Float[Tensor, " rows"]:
        """Score one word piece per row.

        Args:
            copies: the rows, on the CPU.

        Returns:
            Log-probability of each asked piece, nats, float32.
        """
        rows, length = copies.hidden.shape
        states, index = self._states(copies)
        feed = {
            "states": states.flatten(0, 1),
            "index": index,
            "asked": torch.arange(rows) * length + copies.position,
            "target": copies.targets()[:, None],
        }
        (answer,) = self._session.run(None, {name: item.numpy() for name, item in feed.items()})
        return torch.from_numpy(answer)[:, 0]

    def _states(
        self, copies: MaskedCopies
    ) -> tuple[Float[Tensor, "inputs length width"], Int[Tensor, "rows length"]]:
        """Embed the sentences and one row of masks, or the copies where these are fewer."""
        rows, length = copies.hidden.shape
        column = torch.arange(length)
        if rows <= len(copies.ids):
            index = torch.arange(rows)[:, None] * length + column
            return self._embeddings(input_ids=copies.masked()), index
        masks = torch.full((1, length), copies.mask_id)
        states = self._embeddings(input_ids=torch.cat([copies.ids, masks]))
        own = copies.sentence[:, None] * length + column
        return states, torch.where(copies.hidden, len(copies.ids) * length + column, own)
