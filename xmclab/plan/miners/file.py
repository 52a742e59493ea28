"""Negatives from a file: what another program retrieved for each training query.

Where:    H_i labels that the file lists for query i without its positives and filter pairs
Paper:    lists kept for all epochs: the BM25 negatives of DPR (Karpukhin et al., EMNLP 2020), and the shortlists of
          SiameseXML, DECAF and ECLARE (Dahiya et al., ICML 2021; Mittal et al., WSDM 2021 and WWW 2021).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Keys, option
from xmclab.errors import ConfigError, Problem
from xmclab.plan.miners.lists import ListMiner

logger = logging.getLogger(__name__)


@dataclass
class FileMiner(ListMiner):
    """Labels drawn from those that a file lists for each training query."""

    file: str = option("", "labels of each training query: sparse text, .npz or JSON lines")

    @property
    def candidates(self) -> str | None:
        """The file; its scores are not used."""
        return self.file

    def prepare(self, data: Dataset, exclude_NL: sp.csr_array, keys: Keys) -> None:
        """Take the lists without positives and filter pairs, and say how many these were."""
        if data.train.candidates_NL is None:
            raise ConfigError(Problem("miner=file", "the data was opened without the file", "open it with the config"))
        dropped = self.keep(data.train.candidates_NL, exclude_NL)
        empty = np.count_nonzero(self.lengths_N == 0)
        text = f"{self.lengths_N.sum():,} negatives for {len(self.lengths_N):,} training queries, {empty:,} have none"
        logger.info("%s: %s; left out %s positives and filter pairs", self.file, text, f"{dropped:,}")
