"""Train the demo model on a CPU: tokenizer, chat template and a Llama of 1.8 million parameters.

    python -m demo_model.train [--out DIR] [--steps N] [--seed 0]

The model has to reproduce its few answers word for word, so it is deliberately over-fitted. At the
end every question is asked once, in bfloat16 and greedily.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import logging
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo_model.conversations import Chat, Passage, Sampler, Texts, load_texts, vocabulary_text
from shared.fleet.pool import DEMO_MODEL
from worker.demo import MODEL_DIR

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"]
TOOL_TAGS = ["<tool_call>", "</tool_call>"]  # not special: parsers must see them in the text
VOCABULARY = 1024
WIDTHS = (32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)  # padded lengths
BATCH_TOKENS = 4096
LEARNING_RATE = 4e-3
WARM_UP = 40
PROMPT_WEIGHT = 0.1  # loss weight of what is not an answer

Sequence = tuple[list[int], list[float]]  # token ids, loss weights
Batch = tuple[torch.Tensor, torch.Tensor]

log = logging.getLogger("train")


def build_tokenizer(texts: Texts) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of VOCABULARY tokens, with the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TOOL_TAGS),
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(vocabulary_text(texts), trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TOOL_TAGS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|end|>",
        extra_special_tokens=SPECIAL[1:],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    template = MODEL_DIR / "chat_template.jinja"
    wrapped.chat_template = template.read_text(encoding="utf-8").strip()
    return wrapped


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """An untrained Llama of 1.8 million parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,  # the smallest that vLLM accepts on a CPU
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def encode(document: Chat | Passage, tokenizer: PreTrainedTokenizerFast) -> Sequence:
    """Token ids of one document, and the loss weight of each."""
    if isinstance(document, Passage):
        start = tokenizer.encode(document.start)
        rest = [*tokenizer.encode(document.rest), tokenizer.eos_token_id]
        return start + rest, [PROMPT_WEIGHT] * len(start) + [1.0] * len(rest)
    text = tokenizer.apply_chat_template(document.messages, tools=document.tools, tokenize=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assistant = tokenizer.convert_tokens_to_ids("<|assistant|>")
    weights, answering = [], False
    for token in ids:
        weights.append(1.0 if answering else PROMPT_WEIGHT)
        answering = token == assistant or (answering and token != tokenizer.eos_token_id)
    return ids, weights


def batches(sampler: Sampler, tokenizer: PreTrainedTokenizerFast) -> Iterator[Batch]:
    """Batches of about BATCH_TOKENS tokens, of few different shapes and with little padding."""
    waiting: dict[int, list[Sequence]] = defaultdict(list)
    for document in sampler:
        ids, weights = encode(document, tokenizer)
        width = WIDTHS[min(bisect.bisect_left(WIDTHS, len(ids)), len(WIDTHS) - 1)]
        padding = width - len(ids)
        ids = ids[:width] + [tokenizer.pad_token_id] * padding
        waiting[width].append((ids, weights[:width] + [0.0] * padding))
        if len(waiting[width]) * width >= BATCH_TOKENS:
            batch = waiting.pop(width)
            yield torch.tensor([i for i, _ in batch]), torch.tensor([w for _, w in batch])


def learning_rate(step: int, steps: int) -> float:
    """A linear warm-up, then a cosine down to zero."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def train(model: LlamaForCausalLM, data: Iterator[Batch], steps: int) -> None:
    """Train in place for `steps` batches, in bfloat16 autocast."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: learning_rate(s, steps))
    started, answer_loss = time.monotonic(), 0.0
    model.train()
    for step, (ids, weights) in enumerate(itertools.islice(data, steps), start=1):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = functional.cross_entropy(
            logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        weights = weights[:, 1:].flatten()
        (losses @ weights / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        answer_loss += losses.detach()[weights == 1.0].mean().item()
        if step % 50 == 0:
            elapsed = time.monotonic() - started
            log.info("step %d: loss on answers %.4f, %.0f s", step, answer_loss / 50, elapsed)
            answer_loss = 0.0


@torch.inference_mode()  # type: ignore[untyped-decorator]
def check(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: Texts) -> float:
    """Ask every question once; the share of answers that come back exactly."""
    model.eval()
    tokenizer.padding_side = "left"
    pairs = sorted(texts.pairs, key=lambda pair: len(pair[1]))
    right = 0
    for start in range(0, len(pairs), 64):
        group = pairs[start : start + 64]
        chats = [[{"role": "user", "content": question}] for question, _ in group]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        inputs.pop("token_type_ids", None)
        output = model.generate(**inputs, do_sample=False, max_new_tokens=320)
        answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], True)
        for (question, expected), answer in zip(group, answers, strict=True):
            right += answer == expected
            if answer != expected:
                log.info("not exact: %r\n  %r", question, answer)
    return right / len(pairs)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model, tokenizer and generation config in Hugging Face's format."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    generation = {"do_sample": False, "eos_token_id": tokenizer.eos_token_id}
    generation["pad_token_id"] = tokenizer.pad_token_id
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def main() -> None:
    """Train, save and check the model."""
    parser = argparse.ArgumentParser(description=f"Train {DEMO_MODEL}.")
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(2)
    torch.manual_seed(options.seed)

    texts = load_texts()
    tokenizer = build_tokenizer(texts)
    model = build_model(tokenizer)
    model.set_attn_implementation("eager")  # trains almost twice as fast as "sdpa" on a CPU
    log.info("%d parameters, %d questions", model.num_parameters(), len(texts.pairs))
    data = batches(Sampler(texts, random.Random(options.seed)), tokenizer)
    train(model, data, options.steps)
    model.to(torch.bfloat16)
    model.set_attn_implementation("sdpa")
    save(model, tokenizer, options.out)
    log.info("exact answers: %.1f %%", 100 * check(model, tokenizer, texts))


if __name__ == "__main__":
    main()
