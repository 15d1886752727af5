"""An engine without a model, for load and fault tests: a continuous batch whose tokens are made up.

Its answers are labelled: each text begins with `[simulated]`.
"""
