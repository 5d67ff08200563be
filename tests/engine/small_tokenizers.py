"""Small tokenizers built for tests: the kinds that exist, with added tokens of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SENTENCES = [
    "The harbour was dredged in March, and two ships could not enter for nine days.",
    "Rain fell for a week; the river rose by two metres. Schools stayed shut until Thursday!",
    "user assistant system end start think im_end im_start <tag> </tag> | <| |> [INST] [/INST]",
] * 4
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ADDED = [
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<|im_end|>", special=True, normalized=False),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("</think>", special=False, normalized=True),
    AddedToken("<mask>", special=True, lstrip=True, rstrip=True, normalized=True),
    AddedToken("tool", special=False, single_word=True),
    AddedToken("<|im", special=False),
    AddedToken("[|sök|]", special=False, normalized=True),
    AddedToken("   ", special=False, normalized=False),
    AddedToken("\t\t", special=False, normalized=False),
    AddedToken("<|last|>", special=True),
]


def byte_level() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    # "<|im_start|>" also stands in the model's own vocabulary, as in many published tokenizers.
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return _with_added(backend)


def prefixed_bytes() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return _with_added(backend)


def unigram() -> Tokenizer:
    """Metaspace and byte fallback; the control tokens are pieces of the vocabulary with the best score there
    is.
    """
    letters = sorted({letter for sentence in SENTENCES for letter in sentence if letter != " "})
    pieces: list[tuple[str, float]] = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("<|im_start|>", 0.0),
        ("<think>", 0.0),
    ]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [("▁", -2.0), ("▁the", -3.0), ("and", -3.5)] + [(letter, -5.0) for letter in letters]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return _with_added(
        backend, [AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")]
    )


def word_piece() -> Tokenizer:
    letters = sorted({letter for sentence in SENTENCES for letter in sentence.lower() if letter != " "})
    names = ["[UNK]", "[SEP]", "tool", "<think>", *letters, *(f"##{letter}" for letter in letters)]
    backend = Tokenizer(
        models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    return _with_added(backend, [AddedToken("[UNK]", special=True), AddedToken("[SEP]", special=True)])


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte level with a prefix space": prefixed_bytes,
    "unigram": unigram,
    "word piece": word_piece,
}


def wrapped(backend: Tokenizer, **further: Any) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", **further)


def _with_added(backend: Tokenizer, first: list[AddedToken] | None = None) -> Tokenizer:
    backend.add_tokens((first or []) + ADDED)
    return backend
