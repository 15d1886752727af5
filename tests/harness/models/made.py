"""Makes small models with random weights: `python -m tests.harness.models.made FOLDER`.

A process of its own, because torch and transformers take seconds to import and warn while they do.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.harness.models import DEMO_FOLDER, LABELS
from tests.harness.models.whisper import make_whisper
from tests.harness.settings import ROOT

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_HEAD_DIM = 32
"""The smallest that vLLM has for a CPU."""


def _llama(**changes: object) -> LlamaConfig:
    """A Llama of two layers with the demo model's vocabulary."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO_FOLDER)
    fields = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": 1024,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return LlamaConfig(**(fields | changes))


def _copy_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO_FOLDER / name, folder / name)


def make_embedder(folder: Path) -> None:
    """A Llama, for `--runner pooling --convert embed`."""
    LlamaForCausalLM(_llama(architectures=["LlamaForCausalLM"])).save_pretrained(folder)
    _copy_tokenizer(folder)


def make_classifier(folder: Path) -> None:
    """A Llama with a head for three classes."""
    config = _llama(
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    _copy_tokenizer(folder)


def make_reranker(folder: Path) -> None:
    """A cross-encoder: a BERT with one output, and a tokenizer for pairs."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=512, special_tokens=list(_SPECIAL), show_progress=False
    )
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    first, last = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", last), ("[CLS]", first))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    config = BertConfig(
        vocab_size=len(wrapped),
        hidden_size=2 * _HEAD_DIM,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=512,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    wrapped.save_pretrained(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "embedder": make_embedder,
    "classifier": make_classifier,
    "reranker": make_reranker,
    "whisper": make_whisper,
}
"""By the name of the folder."""


def main() -> None:
    """Make all of them below the folder that is named on the command line."""
    for name, make in MAKERS.items():
        torch.manual_seed(0)
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True)
        make(folder)


if __name__ == "__main__":
    main()
