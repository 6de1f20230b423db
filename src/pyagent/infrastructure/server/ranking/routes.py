"""The endpoints that rank, score and classify."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.messages import (
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Message,
    RankRequest,
    TokenEmbedRequest,
    TokenEmbedResult,
)
from pyagent.infrastructure.models.names import find_model
from pyagent.infrastructure.server.ranking.requests import (
    PoolingBody,
    PoolingTask,
    classify_body,
    pooling_body,
    read_classify,
    read_pooling,
    read_rerank,
    read_score,
    rerank_body,
    score_body,
)
from pyagent.infrastructure.server.service import Service, json_response
from pyagent.infrastructure.server.validation import model_asked


async def rerank(service: Service, request: Request) -> Response:
    """POST /v1/rerank, and /v2/rerank, where Cohere's newer clients ask: the documents, the most relevant first."""
    parsed, pairs = await service.read(request, read_rerank)
    asked = RankRequest(
        model=model_asked(parsed.model), pairs=pairs, private=bool(parsed.private), truncate=parsed.truncate
    )
    return json_response(rerank_body(parsed, await service.rank(request, asked), str(request.state.request_id)))


async def score(service: Service, request: Request) -> Response:
    """POST /v1/score: the relevance of each pair, in order."""
    parsed, pairs = await service.read(request, read_score)
    asked = RankRequest(
        model=model_asked(parsed.model), pairs=pairs, private=bool(parsed.private), truncate=parsed.truncate
    )
    found = await service.rank(request, asked)
    return json_response(score_body(parsed, found, str(request.state.request_id), int(time.time())))


async def classify(service: Service, request: Request) -> Response:
    """POST /v1/classify: the label of each text."""
    parsed = await service.read(request, read_classify)
    asked = ClassifyRequest(
        model=model_asked(parsed.model), input=parsed.texts, private=bool(parsed.private), truncate=parsed.truncate
    )
    found = await service.classify(request, asked)
    return json_response(classify_body(parsed, found, str(request.state.request_id), int(time.time())))


async def pooling(service: Service, request: Request) -> Response:
    """POST /pooling: a vector for each token of each text, or a number for each label."""
    parsed = await service.read(request, read_pooling)
    task = parsed.task or await _only_task(service, parsed)
    found = await _pooled(service, request, parsed, task)
    request_id, created = str(request.state.request_id), int(time.time())
    return json_response(await asyncio.to_thread(pooling_body, parsed, found, request_id, created))


async def _pooled(
    service: Service, request: Request, parsed: PoolingBody, task: PoolingTask
) -> TokenEmbedResult | EmbedResult | ClassifyResult:
    """Ask for what a task gives."""
    model, private, truncate = model_asked(parsed.model), bool(parsed.private), parsed.truncate
    if task == "embed":
        texts = EmbedRequest(model=model, input=parsed.texts, private=private, truncate=truncate)
        return await service.embed(request, texts)
    if task == "classify":
        labelled = ClassifyRequest(model=model, input=parsed.texts, private=private, truncate=truncate)
        return await service.classify(request, labelled)
    asked = TokenEmbedRequest(
        model=model,
        input=parsed.texts,
        messages=[Message(one.role, one.content) for one in parsed.messages],
        begins_answer=parsed.add_generation_prompt,
        task=task,
        is_query=parsed.input_type == "query",
        private=private,
        truncate=truncate,
    )
    return await service.token_embed(request, asked)


async def _only_task(service: Service, parsed: PoolingBody) -> PoolingTask:
    """Return what a model does that does nothing else; vectors of tokens where it may be asked for several.

    Where none is named it is one of those that pool: a server's agents, and models that generate, do not.
    """
    models = await service.models()
    named = find_model(parsed.model, models) if parsed.model else None
    tasks = {model.task for model in ([named] if named else models)} - {"generate"}
    if tasks == {"token_classify"}:
        return "token_classify"
    return "classify" if tasks == {"classify"} and not parsed.messages else "token_embed"
