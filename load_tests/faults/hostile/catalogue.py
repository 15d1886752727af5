"""The hostile requests of the table, by the names that the option `--only` takes."""

from __future__ import annotations

from load_tests.faults.hostile.anonymous_attacks import (
    guess_keys,
    half_a_header,
    large_body,
    nothing,
    one_header,
    send_headers,
    short_headers,
    upgrade,
)
from load_tests.faults.hostile.attack import HostileRequest, gets, posts
from load_tests.faults.hostile.tenant_attacks import (
    NEIGHBOUR_SERVED,
    REFUSED,
    SHORT_PROMPTS,
    keep_conversations,
    many_filters,
    ordinary,
    prepare_conversation,
    prepare_large_answer,
    prepare_large_response,
    replay_in_conversation,
    slow_grammars,
    submit_large_answer,
    submit_large_jobs,
    urls_and_tensors,
)

_COMPLETIONS = "/v1/completions"
_ITEMS = "10 at once: items?limit=1 of a conversation of 8 MB"
_RESPONSE = "GET /v1/responses/{id} with 800 tokens x 20 alternatives, 4 times"
_LARGE_JOB = "a job of n x 300 tokens x 20 alternatives, to its end"
_NO_MATCH = "GET /jobs with a filter that matches none, 100 jobs of 8 MB"
_TENANT = {
    # Bodies that keep vLLM's validation busy.
    **{
        f"items-{n}": HostileRequest(
            f"{n:,} items `{{}}` to /v1/responses", posts("/v1/responses", input=[{}] * n)
        )
        for n in (500, 2000, 10_000)
    },
    "batch": HostileRequest(
        "3 x 9,900 empty messages to chat/completions/batch",
        posts("/v1/chat/completions/batch", messages=[[{}] * 9900] * 3),
    ),
    "floats": HostileRequest(
        "15 lists of 60,000 `1.5` to completions", posts(_COMPLETIONS, prompt=[[1.5] * 60_000] * 15)
    ),
    "urls": HostileRequest("URLs and tensors in five places", urls_and_tensors, expected=REFUSED),
    "large-job": HostileRequest(_LARGE_JOB, submit_large_answer),
    **{
        name: HostileRequest(title, gets(path, times=4), prepare_large_answer)
        for name, title, path in (
            ("large-get", "GET /jobs/{id} of it, 4 times", "/jobs/{id}"),
            ("large-wait", "the same with ?wait=1", "/jobs/{id}?wait=1"),
            ("large-events", "GET /jobs/{id}/events of it, 4 times", "/jobs/{id}/events"),
        )
    },
    "large-response": HostileRequest(
        _RESPONSE, gets("/v1/responses/{id}", times=4), prepare_large_response
    ),
    "conversation": HostileRequest(
        _ITEMS, gets("/v1/conversations/{id}/items?limit=1", at_once=10), prepare_conversation
    ),
    "kept": HostileRequest("four conversations of 8 MB", keep_conversations),
    "replays": HostileRequest(
        "300 times one idempotency key in a conversation", replay_in_conversation
    ),
    "filters": HostileRequest("3,000 filters of jobs", many_filters),
}

HOSTILE_REQUESTS = {
    "nothing": HostileRequest("nothing", nothing),
    "ordinary": HostileRequest("ordinary short requests", ordinary),
    "objects": HostileRequest("8 MB of `{}` in an unknown field", large_body('"x": [{}...]')),
    "lists": HostileRequest("8 MB of `[]` in such a field", large_body('"x": [[]...]')),
    "keys": HostileRequest("8 MB of keys in such a field", large_body('"x": {"k#":0...}')),
    "unknown": HostileRequest(
        "8 MB of `[]`, unknown model", large_body('"x": [[]...]', "no-such-model")
    ),
    "messages": HostileRequest(
        "8 MB of messages", large_body('"messages": [{"role":"user","content":"a"}...]', times=1)
    ),
    "wrong-messages": HostileRequest(
        "8 MB of `{}` as messages", large_body('"messages": [{}...]', times=1)
    ),
    "list-40": HostileRequest(
        "GET /jobs?limit=100, 40 jobs of 8 MB", gets("/jobs?limit=100"), submit_large_jobs(40)
    ),
    "list-40x4": HostileRequest(
        "the same, four at once", gets("/jobs?limit=100", at_once=4), submit_large_jobs(40)
    ),
    "list-100": HostileRequest(
        "GET /jobs?limit=100, 100 jobs of 8 MB", gets("/jobs?limit=100"), submit_large_jobs(100)
    ),
    "list-none": HostileRequest(
        _NO_MATCH, gets("/jobs?limit=100&model=nobody"), submit_large_jobs(100)
    ),
    "header": HostileRequest("no key: one header of 100 MB", *send_headers(one_header)),
    "headers": HostileRequest("no key: 40 MB of headers", *send_headers(short_headers)),
    "half": HostileRequest("no key: 300 x half a header, 256 descriptors", half_a_header),
    "upgrade": HostileRequest("no key: 300 x upgrade by POST, 256 descriptors", upgrade),
    "guess": HostileRequest("no key: guessing keys", guess_keys),
    **_TENANT,
}
VLLM_HOSTILE_REQUESTS = {
    "nothing": HostileRequest("real vLLM: nothing", nothing),
    "ordinary": HostileRequest("real vLLM: ordinary short requests", ordinary),
    "vllm-prompts": HostileRequest(
        "real vLLM: 8 MB in 1024 prompts", posts(_COMPLETIONS, prompt=SHORT_PROMPTS, max_tokens=1)
    ),
    "vllm-truncate": HostileRequest(
        "real vLLM: 4 MB prompt with `truncate_prompt_tokens`",
        posts(_COMPLETIONS, prompt="one two " * (1 << 19), truncate_prompt_tokens=16, max_tokens=1),
    ),
    **_TENANT,
    "grammars": HostileRequest(
        "48 slow grammars, a neighbour's small ones", slow_grammars, expected=NEIGHBOUR_SERVED
    ),
}
"""Requests to real vLLM with the demo model, all to one fleet."""
BASELINES = ("nothing", "ordinary")
"""The rows with which the others are compared."""
