"""TorchServe's bodies in the API's description."""

from __future__ import annotations

from gateway.description.schema import NUMBER, TEXT, WHOLE, Schema, array, obj

PREDICTION_SCHEMAS: dict[str, Schema] = {
    "PredictionRequest": obj(
        "prompt",
        prompt=TEXT,
        max_new_tokens=WHOLE,
        temperature=NUMBER,
        lora_adapter=TEXT | {"description": "the name of an adapter"},
    )
    | {"description": "TorchServe's: a prompt, and vLLM's sampling parameters"},
    "Prediction": obj("text tokens", text=TEXT, tokens=array(WHOLE)),
}
