"""Documents under way: nothing asked twice, recorded replies not asked again, failures end their document
alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DocumentFailed
from pipeline.records import (
    Answer,
    Decode,
    Document,
    EncodedPrompt,
    Generation,
    Origin,
    Request,
    Step,
    TaskJob,
)
from pipeline.tasks import Work
from pipeline.tasks.base import ask
from pipeline.tasks.driver import TaskDriver
from pipeline.tasks.throughput_meter import TaskSize, ThroughputMeter


class Rounds:
    """A task that asks ``rounds[i]`` questions in its i-th round and answers with all replies joined."""

    notes: tuple[str, ...] = ()

    def __init__(self, rounds: Sequence[int], name: str = "t") -> None:
        self.job = TaskJob(name, "summarize", {"rounds": list(rounds)})
        self._rounds = rounds

    def work(self, document: Document) -> Work:
        seen: list[int] = []
        for number, questions in enumerate(self._rounds):
            steps = [
                Step(f"{number}/{index}", EncodedPrompt((number, index), 0, 1), Decode(4))
                for index in range(questions)
            ]
            replies = yield from ask(steps)
            seen += [token for reply in replies for token in reply.token_ids]
        if not seen:
            raise DocumentFailed("empty_answer", "nothing was asked")
        return Answer(" ".join(map(str, seen)), "stop")


class Broken(Rounds):
    def work(self, document: Document) -> Work:
        yield []
        raise ZeroDivisionError("a fault of ours")


def document(name: str = "d") -> Document:
    return Document(name, "text", Origin("f", 1))


def reply(request: Request, **changes: Any) -> Generation:
    return Generation(
        request.request_id, token_ids=(request.ids[0] * 100 + request.ids[1],), seconds=0.5, **changes
    )


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 10**6))
def test_rounds_are_answered_in_order_whatever_the_order_of_replies(
    rounds: list[int], per_work: int, seed: int
) -> None:
    chance = random.Random(seed)
    driver = TaskDriver(per_work)
    driver.begin(Rounds(rounds), document(), 1, {})
    out: list[Request] = []
    asked = 0
    while len(driver):
        fresh = driver.requests()
        asked += len(fresh)
        out += fresh
        assert 0 < len(out) <= per_work
        driver.receive([reply(out.pop(chance.randrange(len(out))))])
    (outcome,) = driver.landed()
    assert asked == sum(rounds)
    expected = [number * 100 + index for number, questions in enumerate(rounds) for index in range(questions)]
    if expected:
        assert outcome.answer is not None
        assert outcome.answer.value == " ".join(map(str, expected))
        assert outcome.seconds == 0.5 * asked
    else:
        assert outcome.failure is not None
        assert outcome.failure.kind == "empty_answer"


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 20))
def test_recorded_replies_are_not_asked_again(rounds: list[int], cut: int) -> None:
    recorded: dict[str, Generation] = {}
    driver = TaskDriver(3)
    driver.begin(Rounds(rounds), document(), 1, {})
    for _ in range(cut):
        if not len(driver):
            break
        for request in driver.requests():
            recorded |= {kept.step.key: kept.generation for kept in driver.receive([reply(request)])}
    resumed = TaskDriver(3)
    resumed.begin(Rounds(rounds), document(), 2, recorded)
    asked = 0
    while len(resumed):
        for request in resumed.requests():
            asked += 1
            resumed.receive([reply(request)])
    assert asked == sum(rounds) - len(recorded)
    answer = resumed.landed()[0].answer
    assert answer is not None
    assert answer.value == " ".join(
        str(number * 100 + index) for number, questions in enumerate(rounds) for index in range(questions)
    )


def test_an_error_ends_its_document_at_once_and_no_other() -> None:
    driver = TaskDriver(8)
    driver.begin(Rounds([5]), document("bad"), 3, {})
    driver.begin(Rounds([1]), document("good"), 1, {})
    requests = driver.requests()
    driver.receive([reply(requests[1], error=("out_of_memory", "too big"), finish_reason="error")])
    (bad,) = driver.landed()
    assert bad.failure is not None
    assert (bad.state, bad.failure.kind, bad.failure.attempt) == ("failed", "out_of_memory", 3)
    assert sorted(driver.cancelled()) == [
        requests[0].request_id,
        *(request.request_id for request in requests[2:5]),
    ]
    # late replies are ignored
    driver.receive([reply(request) for request in requests if request is not requests[1]])
    (good,) = driver.landed()
    assert good.state == "done"
    assert not len(driver)


class Smaller(Rounds):
    """Asks one question about everything; when it has no answer, two about less."""

    def work(self, document: Document) -> Work:
        try:
            replies = yield from ask([Step("whole", EncodedPrompt((9, 9), 0, 1), Decode(4))])
        except DocumentFailed as failure:
            replies = yield from ask(
                [Step(f"half/{index}", EncodedPrompt((1, index), 0, 1), Decode(4)) for index in range(2)]
            )
            return Answer(f"{failure.kind}: {len(replies)} halves", "stop")
        return Answer("whole", "stop")


def test_a_question_without_an_answer_may_be_asked_otherwise() -> None:
    driver = TaskDriver(4)
    driver.begin(Smaller([]), document(), 1, {})
    (whole,) = driver.requests()
    driver.receive([reply(whole, error=("out_of_memory", "too big"), finish_reason="error")])
    halves = driver.requests()
    assert len(halves) == 2
    driver.receive([reply(half, notes=("ran short of memory: smaller passes",)) for half in halves])
    (outcome,) = driver.landed()
    assert outcome.answer is not None
    assert outcome.answer.value == "out_of_memory: 2 halves"
    assert outcome.answer.notes == ("ran short of memory: smaller passes",)


def test_a_fault_of_ours_fails_the_document_and_says_so() -> None:
    driver = TaskDriver(8)
    driver.begin(Broken([1]), document(), 1, {})
    (outcome,) = driver.landed()
    assert outcome.failure is not None
    assert outcome.failure.kind == "fault"
    assert "ZeroDivisionError" in outcome.failure.message


def test_whose_questions_these_are() -> None:
    driver = TaskDriver(8)
    for name in "abc":
        driver.begin(Rounds([2]), document(name), 1, {})
    requests = driver.requests()
    by_name = {name: ("t", document(name).key) for name in "abc"}
    asked = [requests[0].request_id, requests[2].request_id, 10**9]
    assert driver.asking(asked) == sorted([by_name["a"], by_name["b"]])
    assert driver.asking([]) == []


def test_what_is_abandoned_is_gone_and_the_others_go_on() -> None:
    driver = TaskDriver(1)
    for name in "abc":
        driver.begin(Rounds([2]), document(name), 1, {})
    first = driver.requests()
    driver.abandon([("t", document("b").key)])
    assert driver.cancelled() == [first[1].request_id]
    assert driver.wanted(first) == [first[0], first[2]]
    assert driver.receive([reply(first[1])]) == []  # a late reply is nobody's
    questions = 2
    while len(driver):
        driver.receive([reply(request) for request in driver.wanted(first)])
        first = driver.requests()
        questions += len(first)
    assert questions == 4  # nothing more was asked of the abandoned one
    assert [outcome.key for outcome in driver.landed()] == [document(name).key for name in "ac"]
    assert driver.steps_open == 0


def test_the_pace_counts_parts_and_ends_at_nothing_left() -> None:
    pace = ThroughputMeter({"t": TaskSize(4), "spans": TaskSize(4)})
    assert pace.eta_seconds is None
    driver = TaskDriver(8, pace)
    driver.begin(Rounds([4]), document("a"), 1, {})  # four characters, no spans
    driver.begin(Spans(), document("b"), 1, {})  # four characters, read twice over
    requests = driver.requests()
    driver.receive([reply(requests[-1], prompt_tokens=6)])
    assert pace.eta_seconds is not None
    assert pace.eta_seconds > 0
    assert pace.tokens_per_second > 0
    driver.receive([reply(request) for request in requests[:-1]])
    assert pace.eta_seconds == pytest.approx(0)


class Parts(Rounds):
    """Reads a text in so many parts, then asks about what came of them."""

    def __init__(self, parts: int) -> None:
        super().__init__([parts], "parts")
        self._parts = parts

    def work(self, document: Document) -> Work:
        size = len(document.text) // self._parts
        spans = [(part * size, (part + 1) * size) for part in range(self._parts)]
        yield from ask([Step(f"map/{span}", EncodedPrompt(span, 0, 2), Decode(4), span) for span in spans])
        yield from ask([Step("reduce", EncodedPrompt((1, 2), 0, 0), Decode(4))])
        return Answer("read", "stop", tokens_in=2 * self._parts, parts=self._parts)


def long_document(parts: int) -> Document:
    return Document("long", "x" * (10 * parts), Origin("f", 1))


def test_a_long_document_counts_by_its_parts_and_is_not_done_before_they_are_put_together() -> None:
    pace = ThroughputMeter({"parts": TaskSize(100)})
    driver = TaskDriver(16, pace)
    driver.begin(Parts(10), long_document(10), 1, {})
    shares, left = [pace.share], [pace.eta_seconds]
    for request in driver.requests():
        driver.receive([reply(request)])
        shares.append(pace.share)
        left.append(pace.eta_seconds)
    assert shares == sorted(set(shares))
    assert 0.9 < shares[-1] < 1
    assert left[-1] is not None
    assert left[-1] > 0  # the merge is still to come
    driver.receive([reply(request) for request in driver.requests()])
    assert driver.landed()[0].answer is not None
    assert (pace.share, pace.eta_seconds) == pytest.approx((1, 0))


def test_parts_of_an_earlier_run_are_behind_it_and_no_speed() -> None:
    first = TaskDriver(16)
    first.begin(Parts(10), long_document(10), 1, {})
    recorded = {
        kept.step.key: kept.generation
        for request in first.requests()[:5]
        for kept in first.receive([reply(request, prompt_tokens=1000)])
    }
    pace = ThroughputMeter({"parts": TaskSize(100)})
    second = TaskDriver(16, pace)
    second.begin(Parts(10), long_document(10), 2, recorded)
    assert 0.4 < pace.share < 0.5
    assert (pace.tokens_per_second, pace.eta_seconds) == (0, None)


def test_what_a_cache_gave_was_not_read() -> None:
    """Of twelve tokens, four of instructions and six of the document, some were there."""
    pace = ThroughputMeter({"t": TaskSize(10)})
    driver = TaskDriver(8, pace)

    class Shared(Rounds):
        def work(self, document: Document) -> Work:
            prompt = EncodedPrompt(tuple(range(12)), 4, 6)
            yield from ask([Step("one", prompt, Decode(4), (0, len(document.text)))])
            return Answer("read", "stop", tokens_in=6)

    for name, computed, read in (("a", None, 6), ("b", 5, 3), ("c", 1, 0), ("d", 9, 6)):
        driver.begin(Shared([1]), document(name), 1, {})
        (request,) = driver.requests()
        driver.receive([reply(request, prompt_tokens=12, computed_tokens=computed)])
        assert driver.landed()[0].read_tokens == read
    tokens = 12 + 5 + 1 + 9 + 4 * len(reply(request).token_ids)
    assert round(pace.tokens_per_second * pace.worked_seconds) == tokens


class Spans(Rounds):
    """Asks twice about the whole text."""

    def __init__(self) -> None:
        super().__init__([2], "spans")

    def work(self, document: Document) -> Work:
        steps = [
            Step(str(index), EncodedPrompt((9, index), 0, 1), Decode(4), (0, len(document.text)))
            for index in range(2)
        ]
        yield from ask(steps)
        return Answer("read", "stop")
