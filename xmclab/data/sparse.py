"""Sparse label matrices."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def canonical(matrix: sp.csr_array) -> sp.csr_array:
    """The matrix with sorted rows, without repeated or zero entries; the same memory where it is so already."""
    matrix = sp.csr_array(matrix)
    if not matrix.has_canonical_format or np.count_nonzero(matrix.data) < matrix.nnz:
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return matrix
