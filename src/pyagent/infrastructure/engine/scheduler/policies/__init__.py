"""The built-in queue policies: in which order waiting requests are taken, and who yields when memory runs out."""

from __future__ import annotations

from collections.abc import Mapping

from pyagent.core.hooks import hookimpl
from pyagent.core.scheduling import QueuePolicyFactory
from pyagent.infrastructure.engine.scheduler.policies.fair import make_fair
from pyagent.infrastructure.engine.scheduler.policies.mlfq import make_mlfq
from pyagent.infrastructure.engine.scheduler.policies.ordered import make_deadline, make_fcfs, make_priority

BUILT_IN: Mapping[str, QueuePolicyFactory] = {
    "fcfs": make_fcfs,
    "priority": make_priority,
    "deadline": make_deadline,
    "fair": make_fair,
    "mlfq": make_mlfq,
}


@hookimpl
def pyagent_register_queue_policies() -> Mapping[str, QueuePolicyFactory]:
    """First come, priority, earliest deadline, fair shares, and several levels with feedback."""
    return BUILT_IN
