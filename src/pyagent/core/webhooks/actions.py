"""What an agent may do with webhooks, as typed values, and what it is told; the journal does it, for the run's tenant.

No secret goes in or out this way: what an agent returns is journalled. `pyagent webhooks rotate` shows a person one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.webhooks.messages import Delivery, DeliveryState, Endpoint

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context


class _Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", forbid_unknown_fields=True):
    pass


class ListWebhooks(_Action, frozen=True, tag="list"):
    """The webhooks, with what waits for each and what failed."""


class AddWebhook(_Action, frozen=True, tag="add"):
    """Have events of runs told to a URL; one that is there already stays as it is."""

    url: str
    events: list[str]


class RemoveWebhook(_Action, frozen=True, tag="remove"):
    """Forget a webhook, and what waits for it."""

    webhook: str


class EnableWebhook(_Action, frozen=True, tag="enable"):
    """Send again to a webhook that was disabled because it took nothing."""

    webhook: str


class TestWebhook(_Action, frozen=True, tag="test"):
    """Send a `webhook.ping` now, once, and tell what it came to."""

    __test__ = False  # no class of tests
    webhook: str


class ShowMessages(_Action, frozen=True, tag="show"):
    """The newest messages that wait, were delivered, or failed for good."""

    state: DeliveryState | None = None
    webhook: str | None = None
    limit: int = 20


class ReplayMessages(_Action, frozen=True, tag="replay"):
    """Send messages again, by their ids, or all dead letters of the last `since_seconds`."""

    messages: list[str] = []
    since_seconds: float | None = None


class VerifySignature(_Action, frozen=True, tag="verify"):
    """Whether a message's signature is right: `body` and headers as they came, `secret` as env:NAME or file:PATH."""

    secret: str
    signature: str
    body: str = ""
    id: str = ""
    timestamp: str = ""
    tolerance_seconds: float = 300.0
    form: Literal["standard", "github"] = "standard"


class ValidatePayload(_Action, frozen=True, tag="validate"):
    """Whether a payload follows a JSON schema: `schema` is one, or a file that has it."""

    schema: str
    payload: str = ""


WebhookAction = ListWebhooks | AddWebhook | RemoveWebhook | EnableWebhook | TestWebhook | ShowMessages | ReplayMessages
"""What the journal does."""
StreamAction = WebhookAction | VerifySignature | ValidatePayload


class WebhookReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an action came to: `is_right` where it asks a question; `text` in words."""

    action: str
    text: str
    webhooks: list[Endpoint] = []
    messages: list[Delivery] = []
    is_right: bool | None = None

    def __str__(self) -> str:
        return self.text


@runtime_checkable
class _Webhooks(Protocol):
    async def do(self, tenant: str, action: WebhookAction) -> WebhookReport: ...


async def webhooks_of(context: Context, action: WebhookAction) -> WebhookReport:
    """Do it with the webhooks of a run's tenant, as a call of a tool: journalled, and not done again by a resumed run.

    Raises `RequestError` where the journal has no webhooks.
    """

    async def work(action: WebhookAction) -> WebhookReport:
        webhooks: object = getattr(context.run.journal, "webhooks", None)
        if not isinstance(webhooks, _Webhooks):
            raise RequestError("only a fleet whose journal is on disk has webhooks", param="webhook")
        return await webhooks.do(context.run.tenant, action)

    effect = "none" if isinstance(action, ListWebhooks | ShowMessages) else "idempotent"
    kind = cast("type[WebhookAction]", WebhookAction)
    tool = FleetTool("webhooks", "Sees to webhooks.", kind, work, effect=effect)
    return cast("WebhookReport", await context.run_tool(tool, action))
