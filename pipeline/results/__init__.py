"""What a run has found, from its ledger alone: exports, views of labels, evaluation, reports."""
