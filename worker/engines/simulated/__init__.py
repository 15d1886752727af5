"""An engine without a model, for load and fault tests: a continuous batch whose tokens are made up.

Its answers are labelled: each text begins with `[simulated]`.
"""

_WORDS = (
    "the a one each some every queue stream worker gateway job token batch answer lease slot step "
    "model shard lane prompt delta engine fleet harbour ship sail wind wave tide rope deck mast "
    "carries holds waits moves reads writes takes gives keeps turns slow quick small large quiet "
    "early late open full near far under over with from into after before until and or but so"
)
EOS, LABEL, FIRST_WORD = 0, 1, 2
TOKENS = ("", "[simulated]", *(f" {word}" for word in _WORDS.split()))
"""The text of every token by id. An answer starts with the label, so that it can't be mistaken for
a model's. One that ends by itself ends with `EOS`, whose text is empty and which counts as a token,
as vLLM's does."""
