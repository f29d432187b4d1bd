"""What is recorded of the positions that a rule looked at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from .blocks import Block, JudgedToken
from .sampling import entropy, widest
from .verify import Rule


def judged_tokens(
    rule: Rule, target_probs: Tensor, draft_probs: Tensor, drafted: Tensor, blocks: Sequence[Block], table_size: int
) -> list[tuple[tuple[JudgedToken, ...], float]]:
    """For each of N blocks its judged tokens, and p(next_token).

    target_probs: (N, γ + 1, V), draft_probs: (N, γ, V), drafted: (N, γ). table_size: entries of each token's table.
    It costs a second synchronisation, but only where this is asked for; and the work over the vocabulary is that of the M
    judged positions.
    """
    device, n_drafted = drafted.device, drafted.shape[1]
    n_judged = [min(block.n_accepted + 1, n_drafted) for block in blocks]
    places = torch.tensor([[i, k] for i, n in enumerate(n_judged) for k in range(n)], dtype=torch.long, device=device)
    at = tuple(places.view(-1, 2).T)
    p, q, x = target_probs[at], draft_probs[at], drafted[at][:, None]  # (M, V), (M, V), (M, 1)
    if rule.joint:  # a joint verdict depends on the whole block
        accept = rule.accept_probs(target_probs, draft_probs, drafted)[at] if n_drafted else p[:, 0]
    else:
        accept = rule.accept_probs(p[:, None].expand(-1, 2, -1), q[:, None], x)[:, 0]
    top = torch.maximum(p, q).topk(table_size, dim=-1).indices
    numbers = torch.stack([p.gather(1, x)[:, 0], q.gather(1, x)[:, 0], accept, entropy(p), entropy(q)], dim=1)
    tables = torch.stack([widest(top), widest(p.gather(1, top)), widest(q.gather(1, top))], dim=2)
    next_places = torch.tensor([[i, block.n_accepted, block.next_token] for i, block in enumerate(blocks)], device=device)
    next_probs = target_probs[tuple(next_places.T)]
    values = iter(torch.cat([widest(next_probs), widest(numbers).flatten(), tables.flatten()]).tolist())
    next_prob_values = list(islice(values, len(blocks)))
    rows = iter([list(islice(values, 5)) for _ in range(len(places))])
    recorded = []
    for n, next_prob in zip(n_judged, next_prob_values, strict=True):
        judged = []
        for p_x, q_x, accept_x, p_entropy, q_entropy in islice(rows, n):
            entries = (list(islice(values, 3)) for _ in range(table_size))
            table = tuple((int(token), p_token, q_token) for token, p_token, q_token in entries)
            judged.append(JudgedToken(p_x, q_x, accept_x, p_entropy, q_entropy, table))
        recorded.append((tuple(judged), next_prob))
    return recorded
