"""What the draft's guesses cost, over a part of the vocabulary, without keeping a matrix of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROWS_AT_ONCE = 256  # rows whose logits are in memory together


@dataclass(frozen=True, slots=True)
class LossMix:
    """Weights of the three parts of the loss of one guess, with p the target's distribution (at temperature 1) and q the draft's.

    tokens: −log q(y), y being the token of the text. distillation: −Σ p log q. overlap: 1 − Σ min(p, q), what a rejection
    costs under the `speculative` rule.
    """

    tokens: float = 0.5
    distillation: float = 0.5
    overlap: float = 0.0


class GuessLoss(torch.autograd.Function):
    """Σ weight · loss over M guesses. The gradient is made in the forward pass: only that of the hidden states is needed.

    Logits are hidden @ head.T over V′ words, chunk by chunk, so memory stays at `ROWS_AT_ONCE` · V′.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, target_hidden: Tensor, labels: Tensor, weights: Tensor, head: Tensor, mix: LossMix
    ) -> Tensor:
        """hidden, target_hidden: (M, D). labels: (M,), rows of head (V′, D). weights: (M,)."""
        grad = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        loss = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            log_q = (hidden[part] @ head.T).float().log_softmax(-1)
            p = (target_hidden[part].to(head.dtype) @ head.T).float().softmax(-1)
            q = log_q.exp()
            label, weight = labels[part, None], weights[part, None]
            guess_loss = -mix.tokens * log_q.gather(-1, label) - mix.distillation * (p * log_q).sum(-1, keepdim=True)
            # d loss / d logits = (tokens + distillation) · q − tokens · onehot(y) − distillation · p
            slope = q * (mix.tokens + mix.distillation) - mix.distillation * p
            slope.scatter_add_(-1, label, torch.full_like(weight, -mix.tokens))
            if mix.overlap:
                guess_loss += mix.overlap * (1 - torch.minimum(p, q).sum(-1, keepdim=True))
                rising = torch.where(q < p, q, 0.0)  # where q is the smaller one, more of it is more overlap
                slope -= mix.overlap * (rising - q * rising.sum(-1, keepdim=True))
            loss += (weight * guess_loss).sum()
            grad[part] = (slope * weight).to(head.dtype) @ head
        ctx.save_for_backward(grad.to(hidden.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = ctx.saved_tensors
        return grad * grads[0], None, None, None, None, None
