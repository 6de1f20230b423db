"""Faults in what other programs reach runs by: HTTP, MCP, A2A, and in the client of MCP servers."""

from __future__ import annotations

from fault import Fault

_RUNS = "src/pyagent/infrastructure/server/runs"
_MCP = "src/pyagent/infrastructure/mcp"
_A2A = "src/pyagent/infrastructure/a2a"
_ANY_ROW = "runs.journal_of(str(request.path_params['id'])).summary(str(request.path_params['id']))"
"""Any tenant's run that the path names."""

FAULTS = (
    Fault(
        "any-run-is-ones-own",
        f"{_RUNS}/access.py",
        "if row is None or row.tenant != self.tenant:",
        "if row is None:",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-runs-are-cancelled",
        f"{_RUNS}/control.py",
        "CancelBody)\n    runs = await Runs.of(service, request)\n    row = runs.row_named",
        f"CancelBody)\n    runs = await Runs.of(service, request)\n    row = {_ANY_ROW}",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-runs-are-resumed",
        f"{_RUNS}/control.py",
        "ResumeBody)\n    runs = await Runs.of(service, request)\n    row = runs.row_named",
        f"ResumeBody)\n    runs = await Runs.of(service, request)\n    row = {_ANY_ROW}",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-runs-are-forked",
        f"{_RUNS}/control.py",
        "ForkBody)\n    runs = await Runs.of(service, request)\n    row = runs.row_named",
        f"ForkBody)\n    runs = await Runs.of(service, request)\n    row = {_ANY_ROW}",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-questions-are-answered",
        f"{_RUNS}/control.py",
        "AnswerBody)\n    runs = await Runs.of(service, request)\n    row = runs.row_named",
        f"AnswerBody)\n    runs = await Runs.of(service, request)\n    row = {_ANY_ROW}",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-runs-are-shown",
        f"{_RUNS}/routes.py",
        "_told(runs, runs.row_named)",
        f"_told(runs, {_ANY_ROW})",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-runs-are-exported",
        f"{_RUNS}/routes.py",
        "    row = runs.row_named\n    stream =",
        f"    row = {_ANY_ROW}\n    stream =",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-runs-are-deleted",
        f"{_RUNS}/routes.py",
        "    row = runs.row_named\n    if row.state",
        f"    row = {_ANY_ROW}\n    if row.state",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "others-runs-are-listed",
        f"{_RUNS}/routes.py",
        "if row.tenant == runs.tenant]",
        "if row.run]",
        "tests/integration/test_server_run_tenants.py::test_another_tenants_run_is_not_there",
    ),
    Fault(
        "keys-of-tenants-collide",
        f"{_RUNS}/requests.py",
        'f"{tenant}\\0{key}"',
        'f"{key}"',
        "tests/integration/test_server_run_tenants.py::test_a_key_of_one_tenant_is_not_anothers",
    ),
    Fault(
        "clients-read-any-file",
        f"{_RUNS}/access.py",
        "contextvars.copy_context().run(self._check_files, files)",
        "contextvars.copy_context()",
        "tests/integration/test_server_run_tenants.py::test_files_are_those_below_the_servers_folder",
    ),
    Fault(
        "all-tasks-are-one-owners",
        f"{_A2A}/routes.py",
        ("        return self._name\n\n\nclass _Callers"),
        ("        return ''\n\n\nclass _Callers"),
        "tests/integration/test_a2a.py::test_tenants_see_nothing_of_each_other",
    ),
    Fault(
        "callers-approve-without-right",
        "src/pyagent/infrastructure/called_runs.py",
        "and (answer is None or not self.caller.may_approve):",
        "and answer is None:",
        "tests/integration/test_mcp_server.py::test_approval_is_asked_and_a_client_without_the_right_cannot_give_it",
    ),
    Fault(
        "calls-of-others-are-taken-up",
        f"{_MCP}/serving.py",
        "waiting.run.caller != caller or waiting.call != _key(params)",
        "waiting.call != _key(params)",
        "tests/integration/test_mcp_server.py::test_run_that_no_client_comes_back_for_is_ended",
    ),
    Fault(
        "cancelled-calls-run-on",
        f"{_MCP}/serving.py",
        ("                with anyio.CancelScope(shield=True):\n                    await run.close()"),
        "                pass",
        "tests/integration/test_mcp_server.py::test_cancelled_call_ends_its_run",
    ),
    Fault(
        "broken-calls-are-made-twice",
        f"{_MCP}/connection.py",
        "if _is_unknown_session(error):",
        "if error:",
        "tests/integration/test_mcp_client_processes.py::test_server_that_dies_is_begun_again",
    ),
    Fault(
        "untrusted-tools-run-unasked",
        f"{_MCP}/client_tools.py",
        'needs_approval=self.server.trust == "none" or',
        "needs_approval=",
        "tests/integration/test_mcp_client.py::test_trust_decides_effects_and_approval",
    ),
)
