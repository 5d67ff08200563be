"""A rehearsal of the night: sampled documents go through their tasks with made-up answers, and what they
would ask is counted.

So the planner knows prompts, parts, reductions and label trees as they will really be, and needs neither
weights nor a model. Made-up answers are as long as they may be.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Sequence

from pipeline.engine.batching import new_tokens
from pipeline.engine.packed.label_trie import LabelTrie
from pipeline.planner.workload import Asked, Question, TaskLoad
from pipeline.records import Decode, Document, Generation, Reject, Request
from pipeline.tasks import Task
from pipeline.tasks.driver import TaskDriver

SAMPLE_DOCUMENTS = 64
# Longer texts are counted whole but rehearsed only so often: one that takes minutes to tokenize would cost
# more than it tells.
_SAMPLE_CHARACTERS = 1_000_000
_ALL_QUESTIONS = 10**9
_WORDS_TOKENS = 60  # around a document, where nothing else is known of prompts
# The engine reads a shared beginning by itself only from this length on.
_LEAST_SHARED_TOKENS = 16


class DocumentSampler:
    """A random sample of the documents that pass by, each as likely as any other (reservoir sampling; Vitter,
    1985), and their counts.
    """

    def __init__(self, size: int = SAMPLE_DOCUMENTS, seed: int = 0) -> None:
        self.documents = self.characters = self.rejected = 0
        self._size = size
        self._chance = random.Random(seed)
        self._kept: list[Document] = []
        self.longest: Document | None = None

    def watch(self, items: Iterable[Document | Reject]) -> Iterator[Document | Reject]:
        """``items``, looked at as they pass."""
        for item in items:
            self._see(item)
            yield item

    def _see(self, item: Document | Reject) -> None:
        if isinstance(item, Reject):
            self.rejected += 1
            return
        self.documents += 1
        self.characters += len(item.text)
        if self.longest is None or len(item.text) > len(self.longest.text):
            self.longest = item
        if len(self._kept) < self._size:
            self._kept.append(item)
        elif (place := self._chance.randrange(self.documents)) < self._size:
            self._kept[place] = item

    @property
    def sample(self) -> list[Document]:
        """Documents to look at closely, at most about a million characters of them."""
        found: list[Document] = []
        characters = 0
        for document in self._kept:
            if found and characters + len(document.text) > _SAMPLE_CHARACTERS:
                break
            found.append(document)
            characters += len(document.text)
        return found


def load_of(
    task: Task,
    sample: Sequence[Document],
    documents: int,
    characters: int,
    output_tokens: float | None = None,
) -> TaskLoad:
    """What ``task`` would ask about ``documents`` documents of ``characters`` in all, by a sample of them."""
    asked = tuple(rehearse(task, document) for document in sample)
    return TaskLoad(task.job.name, task.job.kind, documents, characters, asked, output_tokens)


def rehearse(task: Task, document: Document) -> Asked:
    """Every question that one document would ask if its answers were as long as they may be."""
    driver = TaskDriver(_ALL_QUESTIONS)
    driver.begin(task, document, 1, {})
    questions: list[Question] = []
    read: set[tuple[int, ...]] = set()
    while requests := driver.requests():
        questions += (_question(request, read) for request in requests)
        driver.receive(map(_made_up, requests))
    (outcome,) = driver.landed()
    answer = outcome.answer
    return Asked(
        len(document.text), answer.tokens_in if answer else 0, tuple(questions), failed=answer is None
    )


def longest_row(tasks: Sequence[Task], longest: Document | None) -> int | None:
    """Tokens of the longest prompt with its answer that ``tasks`` would have about the longest document; None
    where that is not known.

    A text that would take minutes to tokenize is not looked at: its parts are as long as the context allows.
    """
    if longest is None or len(longest.text) > _SAMPLE_CHARACTERS:
        return None
    found = [question for task in tasks for question in rehearse(task, longest).questions]
    return max(
        (question.shared_tokens + question.own_tokens + question.new_tokens for question in found),
        default=None,
    )


def rough_longest_row(longest: Document | None, output_tokens: int) -> int | None:
    """Where there is no tokenizer: two characters a token, so that few texts are longer, and words around the
    document.
    """
    return None if longest is None else len(longest.text) // 2 + _WORDS_TOKENS + output_tokens


def _question(request: Request, read: set[tuple[int, ...]]) -> Question:
    """``read``: documents that earlier questions began with, to which this one's is added."""
    shared = min(request.prefix_tokens, len(request.ids) - 1)
    shared = shared if shared >= _LEAST_SHARED_TOKENS else 0
    own = len(request.ids) - shared
    document = request.ids[: request.document_end]
    first = document not in read
    read.add(document)
    tokens = max(0, min(request.document_end, len(request.ids) - 1) - shared) if document else 0
    if isinstance(request.ask, Decode):
        return Question(own, shared, new_tokens(request), document_tokens=tokens, reads_document=first)
    nodes = _tree_nodes(request.ask.continuations)
    return Question(own + nodes, shared, 0, 1 + nodes, tokens, first)


@functools.lru_cache(maxsize=64)
def _tree_nodes(continuations: tuple[tuple[int, ...], ...]) -> int:
    return len(LabelTrie(continuations).nodes)


def _made_up(request: Request) -> Generation:
    """An answer of full length, in the document's own words; scores that all differ."""
    if not isinstance(request.ask, Decode):
        scores = tuple(-1.0 - index for index in range(len(request.ask.continuations)))
        return Generation(request.request_id, scores=scores, prompt_tokens=len(request.ids))
    own = request.ids[max(0, min(request.prefix_tokens, len(request.ids) - 1)) :] or (0,)
    count = request.ask.max_new_tokens
    words = (own * (count // len(own) + 1))[:count]
    return Generation(
        request.request_id, token_ids=words, finish_reason="length", prompt_tokens=len(request.ids)
    )


def rough_load(
    name: str, kind: str, sampler: DocumentSampler, context_tokens: int, output_tokens: int
) -> TaskLoad:
    """Where there is no tokenizer: four characters a token, parts of three quarters of the context, sixty
    tokens around each.
    """
    room = max(1, context_tokens * 3 // 4 - output_tokens)
    asked = []
    for document in sampler.sample:
        tokens = max(1, len(document.text) // 4)
        parts = -(-tokens // room)
        each = Question(-(-tokens // parts) + _WORDS_TOKENS, 0, output_tokens)
        more = (
            (Question(min(room, parts * output_tokens) + _WORDS_TOKENS, 0, output_tokens),)
            if parts > 1 and output_tokens
            else ()
        )
        asked.append(Asked(len(document.text), tokens, (each,) * parts + more))
    return TaskLoad(name, kind, sampler.documents, sampler.characters, tuple(asked))
