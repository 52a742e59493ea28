"""The mathematics: expressions, terms under reductions, values and gradients. Knows api, errors and kernels only."""
