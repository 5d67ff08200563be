"""Labels one can trust: calibration, abstaining, evaluation, review and sampling.

Pure: matrices of label scores, gold labels and texts in, frozen values out; no ledger, no files, no model, no
torch. What needs scikit-learn or the ``rouge-score`` package (the extra ``evaluate``) imports it where it is
used.
"""
