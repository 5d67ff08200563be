"""Texts as vectors for comparing them: TF-IDF weights of words, L2-normalized, so that a dot product is a
cosine similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.quality.scores import Floats, Ints, extra

TEXT_CHARACTERS = 4_000
"""How much of the beginning of a text is compared; more costs memory and changes little."""

_WORDS = 50_000
_CODE = r"(?u)\w+"


def tfidf(texts: Sequence[str]) -> Any:
    """A sparse matrix (texts, words) of float64 rows with length 1, or 0 for a text without a word.
    Deterministic.

    Words that are in one text only are left out where that leaves any; terms are single words of any script.
    """
    text = extra("sklearn.feature_extraction.text")
    cut = [value[:TEXT_CHARACTERS] for value in texts]
    for least in (2, 1):
        try:
            return text.TfidfVectorizer(
                max_features=_WORDS, min_df=least, sublinear_tf=True, token_pattern=_CODE
            ).fit_transform(cut)
        except ValueError:  # no word is left, scikit-learn's way of saying it
            continue
    return extra("scipy.sparse").csr_matrix((len(cut), 1), dtype=np.float64)


def neighbours(vectors: Any, count: int) -> tuple[Ints, Floats]:
    """Each row's ``count`` nearest other rows and their cosine similarities, (rows, count), nearest first;
    exact, in blocks.
    """
    count = min(count, vectors.shape[0] - 1)
    if count < 1:
        return np.empty((vectors.shape[0], 0), dtype=np.int64), np.empty((vectors.shape[0], 0))
    index = (
        extra("sklearn.neighbors")
        .NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute")
        .fit(vectors)
    )
    distances, places = index.kneighbors()  # without an argument a row is not its own neighbour
    return np.asarray(places, dtype=np.int64), 1 - np.asarray(distances, dtype=np.float64)


def similarity(vectors: Any, row: int) -> Floats:
    """Cosine similarity of every row with ``row``, (rows,)."""
    found: Floats = np.asarray((vectors @ vectors[row].T).todense(), dtype=np.float64).ravel()
    return found


def clusters(vectors: Any, count: int, seed: int) -> tuple[Ints, Floats]:
    """A cluster number a row and its distance to that cluster's centre, (rows,), by k-means on 50 latent
    dimensions at most.
    """
    decomposition = extra("sklearn.decomposition")
    dense = vectors
    if min(vectors.shape) > 51:
        dense = decomposition.TruncatedSVD(n_components=50, random_state=seed).fit_transform(vectors)
    else:
        dense = vectors.toarray()
    model = (
        extra("sklearn.cluster")
        .MiniBatchKMeans(n_clusters=count, n_init=3, batch_size=2048, random_state=seed)
        .fit(dense)
    )
    numbers = np.asarray(model.labels_, dtype=np.int64)
    distances: Floats = np.linalg.norm(dense - np.asarray(model.cluster_centers_)[numbers], axis=1)
    return numbers, distances
