"""The schemas of forms with audio in the API's description, and of their answers."""

from __future__ import annotations

from gateway.description.schema import MAYBE_TEXT, NUMBER, TEXT, WHOLE, YES_NO, Schema, array, obj

_FIELDS: dict[str, Schema] = {
    "file": {"type": "string", "format": "binary"},
    "model": TEXT | {"description": "one of GET /v1/models"},
    "language": TEXT,
    "prompt": TEXT,
    "response_format": {"enum": ["json", "text", "verbose_json", "diarized_json"]},
    "stream": YES_NO | {"default": False, "description": "server-sent events"},
    "stream_include_usage": YES_NO,
    "temperature": NUMBER,
    "seed": WHOLE,
    "max_completion_tokens": WHOLE,
}

AUDIO_SCHEMAS: dict[str, Schema] = {
    "TranscriptionRequest": obj(
        "file", **_FIELDS, **{"timestamp_granularities[]": array({"enum": ["word", "segment"]})}
    ),
    "TranslationRequest": obj("file", **_FIELDS),
    "Transcription": obj(
        "text",
        text=TEXT,
        usage=obj("", type=TEXT, seconds=WHOLE),
        duration=NUMBER,
        language=MAYBE_TEXT,
        segments=array(obj("", id=WHOLE, start=NUMBER, end=NUMBER, text=TEXT)),
    ),
}
