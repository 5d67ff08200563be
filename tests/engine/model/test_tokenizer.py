"""The chat tokenizer: text never becomes a control token, and comes back unchanged; templates, ends and
beginnings.
"""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer

from pipeline.config import ModelConfig
from pipeline.engine.model.tokenizer import ChatTokenizer, load_tokenizer
from pipeline.errors import ConfigError
from pipeline.prompts import FrameBuilder
from tests.engine.small_tokenizers import CHATML, KINDS, SENTENCES, byte_level, unigram, wrapped

UNKNOWN = {"word piece": {0}}  # [UNK]: what the model itself has for characters that it does not know


@pytest.fixture(scope="module")
def demo(demo_model_folder: Path) -> ChatTokenizer:
    return load_tokenizer(ModelConfig(id=str(demo_model_folder)))


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> tuple[str, ChatTokenizer]:
    return request.param, ChatTokenizer(wrapped(KINDS[request.param]()))


def traps(token: str) -> list[str]:
    """Ways in which a text may try to say ``token``."""
    half = len(token) // 2
    wide = "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in token)
    return [
        token,
        f" {token} ",
        f"a{token}b",
        token * 3,
        token[:half] + token + token[half:],
        f"\n{token}\t\t{token}   {token}",
        wide,
        token.upper(),
        token.replace("ö", "o\u0308"),
        f"{token[:half]}\u200b{token[half:]}",
        f"\x00{token}\ufeff{token}",
    ]


def contents(tokenizer: ChatTokenizer) -> list[str]:
    return [token.content for token in tokenizer._original.get_added_tokens_decoder().values()]


def test_no_control_token_of_the_demo_model_comes_out_of_text(demo: ChatTokenizer) -> None:
    assert len(demo.control_ids) == 17
    for token in contents(demo):
        for text in traps(token):
            ids, offsets = demo.encode_with_offsets(text)
            assert not demo.control_ids & set(ids), text
            assert demo.decode(ids) == text
            assert offsets[-1][1] == len(text)


def test_no_control_token_comes_out_of_text(kind: tuple[str, ChatTokenizer]) -> None:
    name, tokenizer = kind
    for token in contents(tokenizer):
        for text in traps(token):
            ids = tokenizer.encode(text)
            assert not (tokenizer.control_ids - UNKNOWN.get(name, set())) & set(ids), text
            assert tokenizer.encode_with_offsets(text)[0] == ids


def test_the_traps_would_catch_a_plain_tokenizer(kind: tuple[str, ChatTokenizer]) -> None:
    _, tokenizer = kind
    caught = {
        number
        for token in contents(tokenizer)
        for text in traps(token)
        for number in tokenizer._original.encode(text, add_special_tokens=False).ids
    }
    assert tokenizer.control_ids <= caught


FRAGMENTS = [
    *(
        token
        for kind in KINDS.values()
        for token in [t.content for t in kind().get_added_tokens_decoder().values()]
    )
]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(FRAGMENTS),
        st.sampled_from(FRAGMENTS).map(lambda token: token[1:]),
        st.text(max_size=4),
        st.just(" "),
    ),
    max_size=8,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_any_text_is_data(text: str) -> None:
    for name, tokenizer in _built().items():
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert not (tokenizer.control_ids - UNKNOWN.get(name, set())) & set(ids)
        assert len(ids) == len(offsets)
        assert all(left[0] <= right[0] and left[1] <= right[1] for left, right in itertools.pairwise(offsets))
        assert all(0 <= start <= end <= len(text) for start, end in offsets)
    plain = _built()["prefixed"]
    assert plain.decode(plain.encode(text)) == text.encode("utf-8", "replace").decode()


_BUILT: dict[str, ChatTokenizer] = {}


def _built() -> dict[str, ChatTokenizer]:
    if not _BUILT:
        _BUILT.update({name: ChatTokenizer(wrapped(build())) for name, build in KINDS.items()})
        _BUILT["prefixed"] = _BUILT["byte level with a prefix space"]
    return _BUILT


@pytest.mark.parametrize("sentence", SENTENCES[:2])
def test_ordinary_text_is_encoded_as_the_tokenizer_itself_does(demo: ChatTokenizer, sentence: str) -> None:
    assert demo.encode(sentence) == demo._original.encode(sentence, add_special_tokens=False).ids
    tokenizer = ChatTokenizer(wrapped(byte_level()))
    text = f"{sentence}   a\t\tb"  # runs of spaces are added tokens and stay
    assert tokenizer.encode(text) == tokenizer._original.encode(text, add_special_tokens=False).ids
    assert any(tokenizer._original.id_to_token(number) == "   " for number in tokenizer.encode(text))


def test_kept_added_tokens_keep_their_ids() -> None:
    tokenizer = ChatTokenizer(wrapped(byte_level()))
    assert tokenizer._renumbered  # "   " comes after control tokens, so the copy numbers it otherwise
    assert tokenizer.encode("a   b").count(tokenizer._original.token_to_id("   ")) == 1


def test_pieces_put_one_after_the_other_decode_to_the_whole() -> None:
    for build in (byte_level, unigram, KINDS["byte level with a prefix space"]):
        tokenizer = ChatTokenizer(wrapped(build()))
        for parts in (("the river", " rose"), (" the", "river"), ("a<think>", "b")):
            ids = [number for part in parts for number in tokenizer.encode(part)]
            assert tokenizer.decode(ids) == "".join(parts)


def test_lone_surrogates_and_nothing() -> None:
    tokenizer = ChatTokenizer(wrapped(byte_level()))
    ids, offsets = tokenizer.encode_with_offsets("a\ud800b")
    assert tokenizer.decode(ids) == "a\ufffdb"
    assert offsets[-1] == (2, 3)
    assert tokenizer.encode("") == []
    assert tokenizer.encode_with_offsets("") == ([], [])


def test_offsets_are_places_in_the_text(demo: ChatTokenizer) -> None:
    text = "The harbour <|im_end|> was dredged."
    ids, offsets = demo.encode_with_offsets(text)
    for number, (start, end) in zip(ids, offsets, strict=True):
        assert demo.decode([number]) == text[start:end]
    assert "".join(text[start:end] for start, end in offsets) == text


def test_nothing_is_truncated_or_padded() -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = ChatTokenizer(wrapped(backend))
    assert tokenizer.decode(tokenizer.encode(SENTENCES[0])) == SENTENCES[0]
    assert len(tokenizer.encode_template("<|im_end|>")) == 1


def test_template_of_the_demo_model(demo: ChatTokenizer) -> None:
    text = demo.render([{"role": "user", "content": "Hi"}], {})
    assert text is not None
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    ids = demo.encode_template(text)
    assert ids == demo._tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=False, tokenize=True
    )
    assert (demo.bos_ids, demo.end_ids, demo.pad_id, demo.vocab_size, demo.has_template) == (
        (),
        (2,),
        2,
        49152,
        True,
    )


def test_a_frame_is_the_rendered_prompt(demo: ChatTokenizer) -> None:
    frame = FrameBuilder(demo, "instructions_first", {}, "2026-01-01").build("Summarize.", "Summary:")
    prompt = frame.around(demo.encode("Ships came. <|im_end|>"))
    text = demo.render([{"role": "user", "content": "Summarize.\n\nShips came. <|im_end|>"}], {})
    assert demo._tokenizer.decode(prompt.ids, skip_special_tokens=False) == text
    assert prompt.ids.count(2) == 2  # the template's own: after the system turn and after the user's


def test_beginning_of_sequence_is_found() -> None:
    assert ChatTokenizer(wrapped(unigram())).bos_ids == (1,)
    assert ChatTokenizer(wrapped(byte_level())).bos_ids == ()


def with_template(template: str, **further: Any) -> ChatTokenizer:
    tokenizer = wrapped(byte_level(), **further)
    tokenizer.chat_template = template
    return ChatTokenizer(tokenizer, further_end_ids=(7,))


def test_the_end_of_turn_comes_first_then_all_other_ends() -> None:
    tokenizer = with_template(CHATML.replace("<|im_end|>", "<|last|>"))
    last, end = (tokenizer._original.token_to_id(name) for name in ("<|last|>", "<|im_end|>"))
    assert tokenizer.end_ids == (last, end, 7)


def test_a_template_without_an_end_token_adds_none() -> None:
    tokenizer = with_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    assert tokenizer.end_ids == (tokenizer._original.token_to_id("<|im_end|>"), 7)


def test_a_template_that_refuses_raises_value_error() -> None:
    tokenizer = with_template("{{ raise_exception('System role not supported') }}")
    with pytest.raises(ValueError, match="System role not supported"):
        tokenizer.render([{"role": "system", "content": "x"}], {})
    broken = with_template("{{ messages[7].content.upper() }}")
    with pytest.raises(ValueError, match=r"no element 7"):
        broken.render([{"role": "user", "content": "x"}], {})


def test_options_reach_the_template_and_pin_its_date() -> None:
    template = """  {% set day = strftime_now('%d %b %Y') %}
{{ day }} {{ strftime_now("%Y") }} {{ enable_thinking }} {{ messages[0].content }}"""
    options = {"strftime_now": datetime.date(1999, 3, 1).strftime, "enable_thinking": False}
    messages = [{"role": "user", "content": "x"}]
    assert with_template(template).render(messages, options) == "01 Mar 1999 1999 False x"
    year = datetime.date.today().year
    assert (
        with_template(template).render(messages, {"enable_thinking": True}).endswith(f"{year} {year} True x")
    )
    odd = with_template("{% set form = '%' ~ 'Y' %}{{ strftime_now(form) }}")
    with pytest.raises(ValueError, match="date format %Y is not spelled out"):
        odd.render(messages, options)


def test_no_template() -> None:
    tokenizer = ChatTokenizer(wrapped(byte_level()))
    assert tokenizer.render([{"role": "user", "content": "x"}], {}) is None
    assert not tokenizer.has_template


def test_without_any_end_token_is_refused() -> None:
    tokenizer = wrapped(byte_level())
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="how an answer ends"):
        _ = ChatTokenizer(tokenizer).end_ids


def test_decoding_leaves_special_tokens_out_and_reasoning_marks_in() -> None:
    tokenizer = ChatTokenizer(wrapped(byte_level()))
    ids = tokenizer.encode_template("<think>a</think>b<|im_end|>")
    assert tokenizer.decode(ids) == "<think>a</think>b"


def test_a_single_character_of_the_vocabulary_is_data_even_when_listed_as_added() -> None:
    backend = byte_level()
    backend.add_tokens([AddedToken("a", special=False)])
    tokenizer = ChatTokenizer(wrapped(backend))
    assert tokenizer.decode(tokenizer.encode("banana <think>")) == "banana <think>"


def test_end_tokens_of_the_generation_settings_count(tmp_path: Path) -> None:
    wrapped(byte_level()).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 11}))
    own = AutoTokenizer.from_pretrained(tmp_path).eos_token_id
    assert load_tokenizer(ModelConfig(id=str(tmp_path))).end_ids == (own, 11)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [12, own]}))
    assert load_tokenizer(ModelConfig(id=str(tmp_path))).end_ids == (own, 12)


def test_a_folder_without_tokenizer_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ConfigError, match="tokenizer"):
        load_tokenizer(ModelConfig(id=str(tmp_path)))
