"""A small LoRA adapter for the demo model, made on the spot: random, so its answers are others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.harness.models import DEMO_FOLDER

_RANK = 8


def make_adapter(folder: Path, seed: int, scale: float = 0.5) -> str:
    """Write an adapter in PEFT's format; returns its path."""
    model = json.loads((DEMO_FOLDER / "config.json").read_text())
    hidden, heads = model["hidden_size"], model["head_dim"]
    widths = {
        "q_proj": heads * model["num_attention_heads"],
        "v_proj": heads * model["num_key_value_heads"],
    }
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(model["num_hidden_layers"]):
        for module, width in widths.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            a = random.normal(0, scale, (_RANK, hidden))
            b = random.normal(0, scale, (width, _RANK))
            tensors[f"{name}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(DEMO_FOLDER),
        "r": _RANK,
        "lora_alpha": _RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(widths),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)
