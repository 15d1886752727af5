"""The names that users have in their programs and configuration, and that a redesign keeps."""

from __future__ import annotations

ROUTES = """
POST /v1/chat/completions
POST /v1/chat/completions/batch
POST /v1/completions
POST /v1/responses
GET /v1/responses/{response_id}
DELETE /v1/responses/{response_id}
POST /v1/responses/{response_id}/cancel
GET /v1/responses/{response_id}/input_items
POST /v1/conversations
GET /v1/conversations/{conversation_id}
POST /v1/conversations/{conversation_id}
DELETE /v1/conversations/{conversation_id}
POST /v1/conversations/{conversation_id}/items
GET /v1/conversations/{conversation_id}/items
GET /v1/conversations/{conversation_id}/items/{item_id}
DELETE /v1/conversations/{conversation_id}/items/{item_id}
POST /v1/messages
POST /v1/messages/count_tokens
POST /v1/audio/transcriptions
POST /v1/audio/translations
POST /v1/embeddings
POST /v2/embed
POST /pooling
POST /classify
POST /score
POST /v1/score
POST /rerank
POST /v1/rerank
POST /v2/rerank
POST /tokenize
POST /detokenize
POST /invocations
POST /generative_scoring
POST /v1/systemone
GET /v1/models
GET /v1/models/{name}
POST /v1/files
GET /v1/files
GET /v1/files/{file_id}
DELETE /v1/files/{file_id}
GET /v1/files/{file_id}/content
POST /v1/batches
GET /v1/batches
GET /v1/batches/{batch_id}
POST /v1/batches/{batch_id}/cancel
GET /v1/batches/{batch_id}/output
GET /v1/batches/{batch_id}/errors
POST /v1/webhook_endpoints
GET /v1/webhook_endpoints
GET /v1/webhook_endpoints/{endpoint_id}
POST /v1/webhook_endpoints/{endpoint_id}
DELETE /v1/webhook_endpoints/{endpoint_id}
GET /v1/webhook_endpoints/{endpoint_id}/deliveries
POST /v1/webhook_endpoints/{endpoint_id}/deliveries/{webhook_id}/resend
POST /jobs
GET /jobs
GET /jobs/{job_id}
GET /jobs/{job_id}/result
GET /jobs/{job_id}/stream
GET /jobs/{job_id}/events
GET /jobs/{job_id}/timeline
GET /jobs/{job_id}/why
GET /jobs/{job_id}/request
POST /jobs/{job_id}/cancel
POST /jobs/{job_id}/retry
POST /admin/jobs/cancel
POST /admin/jobs/retry
GET /admin/jobs/{job_id}
GET /admin/jobs/{job_id}/timeline
GET /admin/jobs/{job_id}/why
GET /v1/usage
GET /admin/usage
POST /admin/keys
GET /admin/keys
PUT /admin/keys/{key_id}/limits
POST /admin/keys/{key_id}/rotate
DELETE /admin/keys/{key_id}
GET /admin/tenants
PUT /admin/tenants/{tenant}/limits
GET /admin/audit
GET /admin/pools
GET /admin/pools/{pool}
POST /admin/pools/{pool}/{action}
POST /admin/workers/{worker}/drain
DELETE /admin/models/{name}
GET /autoscale/{name}
GET /admin/autoscale
PUT /admin/autoscale/{name}
GET /admin/doctor
GET /admin/overview
GET /admin/stream
POST /v1/load_lora_adapter
POST /v1/unload_lora_adapter
POST /sleep
POST /wake_up
GET /is_sleeping
POST /reset_prefix_cache
POST /reset_mm_cache
POST /reset_encoder_cache
POST /start_profile
POST /stop_profile
POST /pause
POST /resume
GET /is_paused
GET /server_info
GET /version
GET /load
GET /predictions/{model}/v1/models
GET /models
GET /models/{model}
GET /health
GET /ping
GET /healthz
GET /readyz
GET /metrics
"""
"""Methods and paths in the description of the API."""

ERRORS = """
400 answer_too_large
400 conversation_locked
400 invalid_request_error
400 previous_response_not_found
400 webhook_unreachable
400 webhook_url_refused
401 invalid_api_key
403 foreign_site
403 missing_scope
403 storage_quota_exceeded
403 unknown_host
404 model_not_found
404 not_found
404 unknown_route
405 method_not_allowed
408 body_timeout
409 batch_ended
409 cancelled
409 file_in_use
409 not_repeatable
409 unattended
409 worker_not_ready
409 model_in_use
413 body_too_large
413 file_too_large
415 unsupported_encoding
415 unsupported_media_type
422 idempotency_key_reused
429 budget_exceeded
429 quota_exceeded
429 rate_limit_exceeded
429 too_many_batches
429 too_many_waiting
429 too_many_webhooks
500 context_changed
500 file_damaged
500 job_failed
500 log_lost
500 record_damaged
500 stream_reset
500 too_many_attempts
500 worker_lost
501 keys_not_configured
501 storage_not_configured
502 operation_failed
503 deadline_unreachable
503 overview_failed
503 gateway_stopped
503 intake_stopped
503 model_unavailable
503 queue_full
503 redis_memory_full
503 redis_unavailable
503 storage_unavailable
503 too_many_bodies
504 deadline_exceeded
504 operation_incomplete
504 queue_deadline_exceeded
504 run_deadline_exceeded
"""
"""Statuses and codes of errors, as the description of the API has them."""

SETTINGS = """
host port worker_host worker_port worker_memory_bytes worker_id pool model served_model_name
engine engine_args
redis_url shards durable redis_high_watermark storage_url maintenance_redis_url
api_keys api_keys_file admin_keys tenants allowed_hosts cors_origins allow_fields share_prompt_cache
max_body_bytes max_held_body_bytes max_upload_bytes max_body_values max_inputs max_choices
max_file_bytes max_stored_bytes max_kept_bytes max_waiting_jobs max_queue_depth
max_attempts
result_ttl_s stream_ttl_s response_ttl_s conversation_ttl_s usage_days
keepalive_s stream_status_wait_s idle_connection_s disconnect_grace_s grace_s
drain_deadline_s startup_timeout_s engine_stall_s worker_restart_after_s kv_high_watermark
autoscale autoscale_idle_s autoscale_actuator docker_host docker_project docker_service
webhook_allow log_level log_format otlp_traces_endpoint trace_ratio url api_key
sim_max_num_seqs sim_kv_tokens sim_max_model_len sim_prefill_us_per_token sim_step_ms
sim_step_us_per_seq sim_prefill_tokens_per_step sim_cache_blocks sim_max_loras sim_faults
"""
"""Settings: variables with the prefix FLOTILLA_. Tests set others through tests/harness only."""

COMMANDS = """
up, gateway, worker, maintenance, chat, submit, doctor, usage, audit,
jobs ls, jobs show, jobs why, jobs timeline, jobs result, jobs follow, jobs cancel, jobs retry,
batch run, batch create, batch ls, batch show, batch follow, batch fetch, batch cancel,
files ls, files put, files get, files rm,
webhook create, webhook ls, webhook log, webhook resend, webhook rm,
keys create, keys ls, keys limit, keys rotate, keys revoke, keys tenants,
queue ls, queue pause, queue resume, workers ls, workers drain, models ls, models rm,
scale explain, scale set, config check, config show
"""
"""Commands of `flotilla`."""

REQUEST_HEADERS = """
x-flotilla-on-disconnect x-flotilla-queue-deadline x-flotilla-run-deadline idempotency-key
"""
ANSWER_HEADERS = """
x-flotilla-job-id x-flotilla-queue-position
"""
"""Of a call that became a job; the second one's while it waits."""

GATEWAY_METRICS = """
flotilla_gateway_ready flotilla_open_streams flotilla_ttft_seconds flotilla_requests_refused_total
flotilla_queue_depth flotilla_queue_oldest_age_seconds flotilla_jobs_given_up
flotilla_workers flotilla_maintenance_last_run_timestamp_seconds flotilla_redis_memory_used_bytes
flotilla_redis_memory_limit_bytes flotilla_redis_aof_enabled flotilla_redis_aof_ok
"""
WORKER_METRICS = """
flotilla_engine_steps_total flotilla_worker_slots flotilla_tokens_total
flotilla_tokens_taken_over_total flotilla_jobs_finished_total
"""
"""Metrics that the kept alerts and the kept dashboard read."""
