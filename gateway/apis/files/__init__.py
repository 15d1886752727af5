"""OpenAI's Files and Uploads APIs: files of tenants, in a storage that all gateways share."""
