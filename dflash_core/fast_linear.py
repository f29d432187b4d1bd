"""Linear layers for inference on the CPU: the same products, from weights that are put once into oneDNN's own order."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS_PACKED_FOR = 8  # tokens in a pass that the order of the weights is chosen for


class FastLinear(nn.Module):
    """A linear layer for inference, its weight (out, in) in the order that oneDNN multiplies fastest if it is on the CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.packed = can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_PACKED_FOR) if self.packed else weight

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)"""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN is there and takes this weight."""
    usable = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16) and usable


def pack_linears(module: nn.Module) -> None:
    """Replaces every linear layer inside the module by a `FastLinear`. It cannot be trained or saved afterwards."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, FastLinear(child.weight, child.bias))
        else:
            pack_linears(child)
