"""The hostile requests of the table, by the names that the option `--only` takes."""

from __future__ import annotations

from load_tests.faults.hostile.requests import (
    HostileRequest,
    guess_keys,
    half_a_header,
    large_body,
    list_jobs,
    nothing,
    one_header,
    send_headers,
    short_headers,
    short_prompts,
    submit_large_jobs,
    truncated_prompt,
    upgrade,
)

HOSTILE_REQUESTS = {
    "nothing": HostileRequest("nothing", nothing),
    "objects": HostileRequest("8 MB of `{}` in an unknown field", large_body('"x": [{}...]')),
    "lists": HostileRequest("8 MB of `[]` in such a field", large_body('"x": [[]...]')),
    "keys": HostileRequest("8 MB of keys in such a field", large_body('"x": {"k#":0...}')),
    "unknown": HostileRequest(
        "8 MB of `[]`, unknown model", large_body('"x": [[]...]', "no-such-model")
    ),
    "messages": HostileRequest(
        "8 MB of messages",
        large_body('"messages": [{"role":"user","content":"a"}...]', times=1),
    ),
    "wrong-messages": HostileRequest(
        "8 MB of `{}` as messages", large_body('"messages": [{}...]', times=1)
    ),
    "list-40": HostileRequest(
        "GET /jobs?limit=100, 40 jobs of 8 MB", list_jobs("limit=100"), submit_large_jobs(40)
    ),
    "list-40x4": HostileRequest(
        "the same, four at once", list_jobs("limit=100", 4), submit_large_jobs(40)
    ),
    "list-100": HostileRequest(
        "GET /jobs?limit=100, 100 jobs of 8 MB", list_jobs("limit=100"), submit_large_jobs(100)
    ),
    "list-none": HostileRequest(
        "GET /jobs with a filter that matches none, 100 jobs of 8 MB",
        list_jobs("limit=100&model=nobody"),
        submit_large_jobs(100),
    ),
    "header": HostileRequest("no key: one header of 100 MB", *send_headers(one_header)),
    "headers": HostileRequest("no key: 40 MB of headers", *send_headers(short_headers)),
    "half": HostileRequest("no key: 300 x half a header, 256 descriptors", half_a_header),
    "upgrade": HostileRequest("no key: 300 x upgrade by POST, 256 descriptors", upgrade),
    "guess": HostileRequest("no key: guessing keys", guess_keys),
}
VLLM_HOSTILE_REQUESTS = {
    "vllm-nothing": HostileRequest("real vLLM: nothing", nothing),
    "vllm-prompts": HostileRequest("real vLLM: 8 MB in 1024 prompts", short_prompts),
    "vllm-truncate": HostileRequest(
        "real vLLM: 4 MB prompt with `truncate_prompt_tokens`", truncated_prompt
    ),
}
"""Requests to real vLLM with the demo model."""
