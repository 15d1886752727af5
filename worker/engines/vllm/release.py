"""What this project uses of vLLM, from where the installed release has it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

log = logging.getLogger("flotilla.engine")


def load() -> SimpleNamespace:
    """Import vLLM, which takes ten seconds, and return its parts by their names."""
    import vllm
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    make_arg_parser, validate_parsed_serve_args = _command_line()
    build_app, init_app_state = _application()
    from torch.cpu import _init_amx as init_amx

    from worker.engines.vllm import prefill_resume
    from worker.engines.vllm.collector import install as install_collector
    from worker.engines.vllm.forced_replay import choose_model_runner
    from worker.engines.vllm.forced_replay import install as install_forced_replay
    from worker.engines.vllm.journal import JournalledEngine

    return SimpleNamespace(
        version=vllm.__version__,
        on_cpu=_on_cpu,
        gpus=_gpus,
        AsyncEngineArgs=AsyncEngineArgs,
        AsyncLLM=AsyncLLM,
        FlexibleArgumentParser=FlexibleArgumentParser,
        JournalledEngine=JournalledEngine,
        StatLoggerBase=StatLoggerBase,
        api_key=envs.VLLM_API_KEY,
        ToolParserManager=ToolParserManager,
        build_app=build_app,
        choose_model_runner=choose_model_runner,
        init_amx=init_amx,
        init_app_state=init_app_state,
        install_collector=install_collector,
        install_forced_replay=install_forced_replay,
        prefill_resume=prefill_resume,
        make_arg_parser=make_arg_parser,
        tensors=_tensors,
        validate_parsed_serve_args=validate_parsed_serve_args,
    )


def _command_line() -> tuple[Any, Any]:
    try:  # 0.33
        from vllm.entrypoints.common import cli_args
    except ImportError:
        try:  # 0.32
            from vllm.entrypoints.launchers import cli_args
        except ImportError:  # 0.24
            from vllm.entrypoints.openai import cli_args
    return cli_args.make_arg_parser, cli_args.validate_parsed_serve_args


def _application() -> tuple[Any, Any]:
    try:  # 0.32, 0.33
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
    except ImportError:  # 0.24
        from vllm.entrypoints.openai.api_server import build_app, init_app_state
    return build_app, init_app_state


def _tensors(model: str, revision: str | None) -> dict[str, Any]:
    """The headers of a model's safetensors; empty if it has none, or none that can be read."""
    try:
        from vllm.transformers_utils.config import get_safetensors_params_metadata

        return dict(get_safetensors_params_metadata(model, revision=revision))
    except Exception as error:  # of a hub's library, of a release without the function
        log.warning("the size of the weights of %s is not known: %r", model, error)
        return {}


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _gpus() -> int:
    from vllm.platforms import current_platform

    return 1 if _on_cpu() else int(current_platform.device_count())
