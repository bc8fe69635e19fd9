"""
int8 weights for a CPU, in the library's own frame for quantised models, so that `from_pretrained` loads them.

Shapes: `N` rows, `I` and `O` features in and out, `V` vocabulary, `D` d_model.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

METHOD = "vanilla_int8"  # what a folder's config.json calls it


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of `x` `(N, I)` as whole numbers from -127 to 127, and what each row's are to be multiplied by, `(N, 1)`."""
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """
    `torch.nn.Linear` by int8 products: weights are rounded once, a scale an output; inputs anew in each call, a scale a
    row, so that no row depends on the others.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.zeros(out_features, in_features, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(out_features), requires_grad=False)  # (O)
        self.bias = nn.Parameter(torch.zeros(out_features), requires_grad=False) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `(..., I)` to `(..., O)`."""
        if x.device.type != "cpu":  # whose int8 products are for many rows at a time
            weight = (self.weight * self.scale[:, None]).to(x.dtype)
            return nn.functional.linear(x, weight, None if self.bias is None else self.bias.to(x.dtype))
        rows, scale = quantise(x.float().flatten(0, -2))  # (N, I), (N, 1)
        y = (torch._int_mm(rows, self.weight.t()) * self.scale).mul_(scale)  # (N, O), sums of int32 scaled to float32
        if self.bias is not None:
            y += self.bias
        return y.to(x.dtype).unflatten(0, x.shape[:-1])


class Int8Embedding(nn.Module):
    """`torch.nn.Embedding` whose rows are int8, with a scale each."""

    def __init__(self, num_embeddings: int, embedding_dim: int):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = nn.Parameter(torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(num_embeddings), requires_grad=False)  # (V)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Maps `(B, L)` to `(B, L, D)`."""
        return self.weight[ids] * self.scale[ids][..., None]


def replace_layers(model: nn.Module) -> None:
    """Puts an int8 layer in the place of every linear map and embedding, with their weights where those have any."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            new: Int8Linear | Int8Embedding
            if type(layer) is nn.Linear:
                new = Int8Linear(layer.in_features, layer.out_features, layer.bias is not None)
                if layer.bias is not None:
                    new.bias = layer.bias
            elif type(layer) is nn.Embedding:
                new = Int8Embedding(layer.num_embeddings, layer.embedding_dim)
            else:
                continue
            weight, scale = quantise(layer.weight.detach().float())
            new.weight = nn.Parameter(weight, requires_grad=False)
            new.scale = nn.Parameter(scale[:, 0], requires_grad=False)
            setattr(parent, name, new)


@register_quantization_config(METHOD)
class Int8Config(QuantizationConfigMixin):
    """What marks a folder's weights as int8."""

    def __init__(self, **_: Any):
        self.quant_method = METHOD


@register_quantizer(METHOD)
class Int8Quantizer(HfQuantizer):
    """What `from_pretrained` asks for such a folder."""

    is_trainable = False

    def is_serializable(self) -> bool:
        return True

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What isn't int8 is float32, whatever was asked for: scales in half precision would cost accuracy."""
        return torch.float32

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> None:
        replace_layers(model)


def convert(name_or_path: str | Path, folder: str | Path) -> None:
    """
    Writes a trained model with int8 weights, its tokenizer and generation settings beside it. It is loaded as any other
    where this package is installed. Linear maps and embeddings are int8, a scale a row; products with them round their
    inputs to int8 on a CPU, and are made with the rounded weights elsewhere.

    Args:
        name_or_path: a folder that `vanilla train` wrote, or a repository on the Hub.
        folder: where to write; must not exist, or be empty.

    Raises:
        ValueError: for a folder that holds something; where there is no model of ours.
    """
    # Here, for `import modeling_vanilla` brings this module along, and needn't wait for what those import.
    from modeling_vanilla.interop.common import new_folder, read_model

    with new_folder(folder) as folder:
        model, tokenizer = read_model(name_or_path)
        replace_layers(model)
        model.tie_weights()
        model.config.quantization_config = Int8Config()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


__all__ = ["Int8Config", "Int8Embedding", "Int8Linear", "Int8Quantizer", "convert"]
