"""A small Whisper model (made.py writes it).

Its weights are random, so what it writes down is letters without a meaning; they depend on the
audio, and are the same each time. It takes two seconds of audio at once instead of thirty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.models import CHUNK_S

MAX_TOKENS = 64
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def make_whisper(folder: Path) -> None:
    """Write the model's files into the folder."""
    from transformers import WhisperFeatureExtractor, WhisperProcessor

    tokenizer = _tokenizer()
    extractor = WhisperFeatureExtractor(chunk_length=CHUNK_S)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    _model(tokenizer).save_pretrained(folder)


def _tokenizer() -> Any:
    """Bytes, and Whisper's special tokens."""
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate(alphabet)}
    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES)]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|prev|>"]
    special += ["<|nospeech|>", "<|notimestamps|>"]
    for text in special:
        vocabulary[text] = len(vocabulary)
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=special[1:])
    timestamps = [f"<|{0.02 * number:.2f}|>" for number in range(50 * CHUNK_S + 1)]
    tokenizer.add_tokens([AddedToken(text, special=False) for text in timestamps])
    return tokenizer


def _model(tokenizer: Any) -> Any:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50 * CHUNK_S,
        max_target_positions=MAX_TOKENS,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(7)
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        # Letters only: the embedding is the output's matrix too, and all other tokens get a zero.
        weights = model.model.decoder.embed_tokens.weight
        known = torch.zeros(len(tokenizer), dtype=torch.bool)
        known[tokenizer.convert_tokens_to_ids([*LETTERS.replace(" ", "\u0120")])] = True
        weights[~known] = 0
        weights[known] = torch.randn(len(LETTERS), config.d_model)
        # Else each letter would be the last one again, and the audio would not matter.
        model.model.decoder.embed_positions.weight.normal_(std=12.0)
        cross = model.model.decoder.layers[0].encoder_attn
        encoder = model.model.encoder
        for part, std in ((encoder.conv1, 0.3), (encoder.conv2, 0.1), (cross.v_proj, 0.3)):
            part.weight.normal_(std=std)
        cross.out_proj.weight.normal_(std=0.5)
    return model
