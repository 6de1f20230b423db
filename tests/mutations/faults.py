"""The faults of all rooms; each is in the file of its room."""

from __future__ import annotations

import cluster_faults
import engine_faults
import fleet_faults
import journal_faults
import node_faults
import protocol_faults
import rust_faults
import server_faults
import strategy_faults
import text_faults
import tool_faults
import web_faults
import webhook_faults
from fault import Fault

FAULTS: tuple[Fault, ...] = (
    *cluster_faults.FAULTS,
    *engine_faults.FAULTS,
    *fleet_faults.FAULTS,
    *journal_faults.FAULTS,
    *node_faults.FAULTS,
    *protocol_faults.FAULTS,
    *rust_faults.FAULTS,
    *server_faults.FAULTS,
    *strategy_faults.FAULTS,
    *text_faults.FAULTS,
    *tool_faults.FAULTS,
    *web_faults.FAULTS,
    *webhook_faults.FAULTS,
)
