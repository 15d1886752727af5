"""OpenAI's Files API: files of tenants, in a storage that all gateways share."""
