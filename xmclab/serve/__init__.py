"""Using a trained model: loading a run or an export, and answering queries."""
