"""The library's decoders, as the bench races them, give the texts of ours, leave alone what they cannot do,
and put everything back as it was.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.bench.library.base import LibraryEngine
from pipeline.bench.library.select import open_library
from pipeline.engine.interface import Engine
from pipeline.engine.model.device_map import DeviceMap
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.select import select_engine, static_engine
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Generation, Plan, Request, Sampling, Score
from tests.engine.static.test_engine import exhaust_memory
from tests.equivalence.equality import assert_equal_texts, reference_text
from tests.equivalence.families import FAMILIES, prompts, tiny_model
from tests.equivalence.test_demo_model import NEW_TOKENS as DEMO_TOKENS
from tests.equivalence.test_demo_model import PLAN as DEMO_PLAN
from tests.equivalence.test_demo_model import TEXTS
from tests.equivalence.test_families import CONTINUATIONS, END_IDS, LENGTHS, NEW_TOKENS, made

LLAMA = "llama (GQA)"
PLAN = Plan("float32", "none", "device", "instructions_first", 512, 4, 10_000, 100, 1)
PLANS = {
    "few rows": PLAN,
    "one row": dataclasses.replace(PLAN, max_batch_rows=1),
    "small chunks": dataclasses.replace(PLAN, prefill_chunk_tokens=13),
    "little memory": dataclasses.replace(PLAN, context_tokens=128, batch_tokens=260),
}
# Families whose layers the library's paged cache does not know, or computes otherwise than the model (gemma2
# loses its soft cap).
NOT_CONTINUOUS = {
    "gpt_neox (MHA)",
    "falcon (MQA)",
    "falcon (ALiBi)",
    "bloom (ALiBi)",
    "gemma2",
    "deepseek_v3 (MLA)",
    "qwen3_next (hybrid)",
    "mamba2 (recurrent)",
}
_QUICK = (LLAMA, "gemma3 (sliding and full)")  # contestants of the bench; no answer of a night is theirs
families = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.full) for name in FAMILIES]
)
OPENED: dict[str, Callable[..., tuple[Engine, str]]] = {
    "ours": select_engine,
    "static": static_engine,
    "generate": functools.partial(open_library, "generate"),
    "generate_batch": functools.partial(open_library, "generate_batch"),
}
library = pytest.mark.parametrize("name", ["generate", "generate_batch"])
# The library's own batching starts and ends its threads and its cache again after each fault: seconds a test.
faults = pytest.mark.parametrize("name", ["generate", pytest.param("generate_batch", marks=pytest.mark.full)])


class Sign:
    """A listener that counts."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.pulses = 0

    def started(self, request_ids: Sequence[int]) -> None:
        self.began += request_ids

    def pulse(self) -> None:
        self.pulses += 1


def loaded(model: Any) -> LoadedModel:
    return LoadedModel(model, DeviceMap({"": "cpu"}, {}, 0), {"attention": model.config._attn_implementation})


def opened(name: Any, model: Any, plan: Plan = PLAN, end_ids: Sequence[int] = END_IDS) -> LibraryEngine:
    engine, _ = open_library(name, loaded(model), plan, end_ids=end_ids, pad_id=0)
    assert isinstance(engine, LibraryEngine)
    return engine


# never changed
def finished(engine: Engine, asked: list[Request], late: list[Request] = []) -> list[Generation]:  # noqa: B006
    engine.admit(asked)
    done: list[Generation] = []
    while not engine.idle or late:
        done += engine.step()
        if late and len(done) > 1:
            engine.admit(late)
            late = []
    assert sorted(generation.request_id for generation in done) == list(range(len(done)))
    assert not [thread for thread in threading.enumerate() if "generation_loop" in thread.name]
    return sorted(done, key=lambda generation: generation.request_id)


def decodes(new_tokens: int = NEW_TOKENS, asked: list[tuple[int, ...]] | None = None) -> list[Request]:
    return [
        Request(index, prompt, Decode(new_tokens)) for index, prompt in enumerate(asked or prompts(LENGTHS))
    ]


def texts(generations: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in generations]


@families
def test_which_families_are_supported(family: str) -> None:
    model = tiny_model(family)
    attention = model.config._attn_implementation
    for name in ("generate", "generate_batch"):
        engine, kind = open_library(name, loaded(model), PLAN, end_ids=END_IDS, pad_id=0)  # type: ignore[arg-type]
        assert isinstance(engine, LibraryEngine) == (name == "generate" or family not in NOT_CONTINUOUS), kind
        assert ("is off for this model: " in kind) != isinstance(engine, LibraryEngine)
        assert model.config._attn_implementation == attention


@library
@families
@pytest.mark.parametrize(
    "plan", [pytest.param(plan, marks=pytest.mark.full if "row" in plan else ()) for plan in PLANS]
)
def test_same_texts(family: str, name: str, plan: str) -> None:
    if name == "generate_batch" and family in NOT_CONTINUOUS:
        pytest.skip("runs on the static engine, which has its own tests")
    model = tiny_model(family)
    _, references, _ = made(family)
    engine = opened(name, model, PLANS[plan])
    done = finished(engine, decodes()[:5], decodes()[5:])
    assert [generation.error for generation in done] == [None] * len(LENGTHS)
    assert assert_equal_texts(references, texts(done)) <= 1
    for reference, generation in zip(references, done, strict=True):
        if generation.token_ids == reference.tokens:
            assert generation.finish_reason == ("stop" if reference.ended else "length")
    assert engine.given_up is None
    most = max(generation.batch_rows for generation in done)
    assert most == 1 if PLANS[plan].max_batch_rows == 1 else most <= PLANS[plan].max_batch_rows


@library
def test_same_texts_in_eager_attention(name: str) -> None:
    model = tiny_model(LLAMA, attention="eager")
    _, references, _ = made(LLAMA)
    engine = opened(name, model)
    assert assert_equal_texts(references, texts(finished(engine, decodes()))) <= 1
    assert engine.given_up is None
    assert model.config._attn_implementation == "eager"


@library
def test_loops_end_where_they_end_in_our_decoders_and_are_not_carried_on(name: str) -> None:
    model = tiny_model("olmo2", seed=2)  # runs into loops
    asked = decodes(400, [prompts(LENGTHS)[number] for number in (1, 2, 5)])
    expected = finished(StaticEngine(model, PLAN, end_ids=(), pad_id=0), asked)
    assert {generation.finish_reason for generation in expected} == {"repetition"}
    engine = opened(name, model, end_ids=())
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    done = finished(engine, asked)
    assert [(g.token_ids, g.finish_reason) for g in done] == [
        (g.token_ids, g.finish_reason) for g in expected
    ]
    assert engine.given_up is None
    assert len(passes) < 300


@library
def test_what_ships_with_the_model_changes_nothing(name: str) -> None:
    """A generation configuration in the model's folder may ask for sampling, penalties and end tokens of its
    own.
    """
    model = tiny_model(LLAMA)
    expected = finished(opened(name, model), decodes())
    model.generation_config.update(
        do_sample=True, temperature=5.0, repetition_penalty=3.0, eos_token_id=[55], max_length=70
    )
    shipped = model.generation_config.to_dict()
    assert texts(finished(opened(name, model), decodes())) == texts(expected)
    assert model.generation_config.to_dict() == shipped


@library
def test_what_is_not_the_librarys_goes_to_the_static_engine(name: str) -> None:
    model = tiny_model(LLAMA)
    prompt = prompts((30,))[0]
    sampled = Decode(12, Sampling(1.3, 0.9, 40, seed=7))
    asked = [
        Request(0, prompt, Decode(12)),
        Request(1, prompt, sampled),
        Request(2, prompt, Score(CONTINUATIONS)),
        Request(3, (5,) * 511, Decode(12)),
        Request(4, (), Decode(12)),
        Request(5, (5, 199), Decode(12)),
        Request(6, prompt, Decode(12, Sampling(0.0))),
    ]
    expected = finished(StaticEngine(model, PLAN, end_ids=END_IDS, pad_id=0), asked)
    engine = opened(name, model)
    sign = Sign()
    engine.listener = sign
    done = finished(engine, asked)
    assert [(g.token_ids, g.finish_reason, g.error) for g in done] == [
        (g.token_ids, g.finish_reason, g.error) for g in expected
    ]
    assert done[2].scores == pytest.approx(expected[2].scores, abs=1e-4)
    assert [generation.error and generation.error[0] for generation in done[3:6]] == [
        "too_long",
        "empty_request",
        "unknown_token",
    ]
    assert sorted(sign.began) == [0, 1, 2, 6]


@library
def test_every_token_is_a_sign_of_life(name: str) -> None:
    engine = opened(name, tiny_model(LLAMA), end_ids=())
    sign = engine.listener = Sign()
    done = finished(engine, decodes(25)[:4])
    assert sorted(sign.began) == [0, 1, 2, 3]
    assert sign.pulses >= 25 / 2  # what the library says between two steps of ours is one sign
    assert all(generation.seconds > 0 for generation in done)


@library
def test_released_requests_are_forgotten(name: str) -> None:
    model = tiny_model(LLAMA)
    expected = finished(opened(name, model), decodes())
    engine = opened(name, model)
    engine.admit(decodes())
    done = list(engine.step())
    while not done:
        done += engine.step()
    engine.admit([Request(50, prompts((30,))[0], Score(CONTINUATIONS))])
    gone = next(
        number
        for number in range(len(LENGTHS))
        if number not in {generation.request_id for generation in done}
    )
    engine.release([gone, 50, 999])
    while not engine.idle:
        done += engine.step()
    done.sort(key=lambda generation: generation.request_id)
    assert [generation.request_id for generation in done] == [
        number for number in range(len(LENGTHS)) if number != gone
    ]
    assert texts(done) == [generation.token_ids for generation in expected if generation.request_id != gone]


@library
def test_releasing_everything_leaves_the_model_to_others(name: str) -> None:
    threads = threading.active_count()  # other tests may have left a monitor of a progress bar
    model = tiny_model(LLAMA, attention="eager")
    engine = opened(name, model)
    engine.admit(decodes())
    engine.step()
    engine.release(range(len(LENGTHS)))
    assert engine.idle
    assert engine.step() == ()
    assert model.config._attn_implementation == "eager"
    assert threading.active_count() == threads


def _rows(arguments: dict[str, Any]) -> int:
    """Rows of one pass: those of a padded batch, or of a packed one."""
    packed = arguments.get("cu_seq_lens_q")
    return len(arguments["input_ids"]) if packed is None else len(packed) - 1


@faults
def test_out_of_memory_halves_the_rows(name: str) -> None:
    model = tiny_model(LLAMA)
    expected = finished(opened(name, model), decodes())
    engine = opened(name, model)
    tried: list[int] = []

    def check(_: Any, args: Any, arguments: dict[str, Any]) -> None:
        tried.append(_rows(arguments))
        if tried[-1] > 1:
            exhaust_memory()

    model.register_forward_pre_hook(check, with_kwargs=True)
    done = finished(engine, decodes())
    assert texts(done) == texts(expected)
    assert engine.given_up is None
    assert {generation.batch_rows for generation in done} == {1}
    refused = [rows for rows in tried if rows > 1]
    assert 2 <= len(refused) <= 3  # with 4 allowed, with 2, and perhaps once more with 2 much shorter ones


@faults
def test_memory_that_is_never_enough_is_a_record(name: str) -> None:
    model = tiny_model(LLAMA)
    engine = opened(name, model)
    model.register_forward_pre_hook(lambda *_: exhaust_memory())
    assert [(generation.error or ("none",))[0] for generation in finished(engine, decodes()[:2])] == [
        "out_of_memory"
    ] * 2


@faults
def test_a_model_that_raises_in_company_is_left_to_the_static_engine(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model(LLAMA)
    expected = finished(opened(name, model), decodes())
    engine = opened(name, model)
    passes = iter(range(1000))

    def check(*_: Any) -> None:
        if next(passes) == 5:
            raise ValueError("shapes of the third kind")

    model.register_forward_pre_hook(check)
    done = finished(engine, decodes())
    assert texts(done) == texts(expected)
    assert "shapes of the third kind" in str(engine.given_up)
    assert capfd.readouterr() == ("", "")


@faults
def test_numbers_that_break_only_in_company_are_tried_alone(name: str) -> None:
    model = tiny_model(LLAMA)
    expected = finished(opened(name, model), decodes())
    engine = opened(name, model)

    def poison(_: Any, args: Any, arguments: dict[str, Any], output: Any) -> None:
        if _rows(arguments) == 4:
            output.logits.view(-1, output.logits.shape[-1])[1] = float("nan")

    model.register_forward_hook(poison, with_kwargs=True)
    done = finished(engine, decodes())
    assert [generation.error for generation in done] == [None] * len(done)
    assert texts(done) == texts(expected)


@library
def test_numbers_that_stay_broken_are_a_record(name: str) -> None:
    model = tiny_model(LLAMA)
    engine = opened(name, model)
    with torch.no_grad():
        model.lm_head.weight[7] = float("nan")
    for generation in finished(engine, decodes()):
        assert generation.error is not None
        assert generation.error[0] == "non_finite_logits"
        assert (generation.finish_reason, generation.token_ids) == ("error", ())


@library
def test_interrupts_are_not_swallowed(name: str) -> None:
    threads = threading.active_count()  # other tests may have left a monitor of a progress bar

    class Interrupting(Sign):
        def pulse(self) -> None:
            raise KeyboardInterrupt

    model = tiny_model(LLAMA, attention="eager")
    engine = opened(name, model)
    engine.listener = Interrupting()
    engine.admit(decodes())
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.busy
    assert threading.active_count() == threads
    assert model.config._attn_implementation == "eager"


@pytest.mark.full
def test_all_decoders_over_one_model_in_turn() -> None:
    model = tiny_model(LLAMA)
    _, references, _ = made(LLAMA)
    engines = [OPENED[name](loaded(model), PLAN, end_ids=END_IDS, pad_id=0) for name in OPENED]
    assert len({kind for _, kind in engines}) == len(OPENED)
    for engine, _ in engines * 2:
        assert assert_equal_texts(references, texts(finished(engine, decodes()))) <= 1


@pytest.mark.full
@pytest.mark.parametrize("name", OPENED)
def test_same_texts_on_the_demo_model(name: Any, demo_model_folder: Path, record_property: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(demo_model_folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(demo_model_folder)
    turns = [[{"role": "user", "content": f"Summarize in one sentence:\n\n{text}"}] for text in TEXTS]
    asked = [
        tuple(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"])
        for turn in turns
    ]
    end_ids = (tokenizer.eos_token_id,)
    references = [reference_text(model, prompt, end_ids, DEMO_TOKENS, cached=True) for prompt in asked]
    engine, kind = OPENED[name](loaded(model), DEMO_PLAN, end_ids=end_ids, pad_id=end_ids[0])
    assert "off" not in kind
    near_ties = assert_equal_texts(references, texts(finished(engine, decodes(DEMO_TOKENS, asked))))
    record_property("near_ties", near_ties)
    assert near_ties <= 1
    assert getattr(engine, "given_up", None) is None


@pytest.mark.parametrize("name", OPENED)
def test_a_cache_that_is_not_on_the_device_means_static_batches(name: Any) -> None:
    plan = dataclasses.replace(PLAN, placement="offloaded")
    engine, kind = OPENED[name](loaded(tiny_model(LLAMA)), plan, end_ids=END_IDS, pad_id=0)
    assert isinstance(engine, StaticEngine)
    assert kind == "static batches (the KV cache is offloaded)"


def test_a_model_on_several_devices_is_not_for_continuous_batching() -> None:
    model = tiny_model(LLAMA)
    model.model.layers[2].to("meta")
    engine, kind = open_library("generate_batch", loaded(model), PLAN, end_ids=END_IDS, pad_id=0)
    assert isinstance(engine, StaticEngine)
    assert kind.endswith("is off for this model: it is spread over several devices")


_UNDER_WAY = """
from tests.bench.library.test_library import LLAMA, decodes, opened
from tests.equivalence.families import tiny_model
engine = opened("generate_batch", tiny_model(LLAMA), end_ids=())
engine.admit(decodes(400))
engine.step()
assert engine.busy
raise SystemExit(7)
"""


@pytest.mark.full
def test_a_process_ends_while_the_library_is_at_work() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _UNDER_WAY],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        timeout=120,
        check=False,
    )
    assert ended.returncode == 7
