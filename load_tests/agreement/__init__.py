"""`agree`: `flotilla bench` beside `vllm bench serve`, on the same servers."""
