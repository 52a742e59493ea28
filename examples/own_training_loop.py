"""Use xmclab's losses in your own training loop: no trainer, no config, any model.

A toy problem with a known answer: 40 labels are points on a sphere, a query is a noisy mixture of its labels.
"""

from __future__ import annotations

import torch

import xmclab


def main(steps: int = 200) -> float:
    """Train a linear map; returns the share of queries whose best label is right."""
    generator = torch.Generator().manual_seed(0)
    labels_LD = torch.nn.functional.normalize(torch.randn(40, 16, generator=generator), dim=1)
    positives_QL = torch.zeros(256, 40).scatter(1, torch.randint(40, (256, 3), generator=generator), 1.0)
    noise_QD = 0.3 * torch.randn(256, 16, generator=generator)
    queries_QD = (positives_QL @ labels_LD + noise_QD) @ torch.randn(16, 16, generator=generator)

    objective = xmclab.objective("0.7*ds+0.3*bce", reduction="psl", temperature=0.1, symmetric=True)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        scores_QL = torch.nn.functional.normalize(model(queries_QD), dim=1) @ labels_LD.T
        loss = objective(scores_QL, positives_QL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    best_Q = (model(queries_QD) @ labels_LD.T).argmax(dim=1)
    return float(positives_QL.gather(1, best_Q.unsqueeze(1)).mean())


if __name__ == "__main__":
    print(f"P@1 {100 * main():.1f} %")
