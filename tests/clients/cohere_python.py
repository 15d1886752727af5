"""Cohere's SDK for Python, unmodified: rerank."""

from __future__ import annotations

import cohere
from checks import BASE, KEY, RERANK, check, main

client = cohere.ClientV2(api_key=KEY, base_url=BASE, timeout=120)
DOCUMENTS = ["A lane is a queue.", "A boat has sails.", "Redis stores jobs."]


@check("rerank", needs="rerank")
def rerank() -> None:
    answer = client.rerank(model=RERANK, query="What is a lane?", documents=DOCUMENTS, top_n=2)
    assert len(answer.results) == 2
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert {result.index for result in answer.results} <= {0, 1, 2}


main()
