"""An engine without a model, for load and fault tests: vLLM's batching, shapes and errors, no vLLM.

Its answers are labelled: each begins with `[simulated]`.
"""
