"""Faults in the built-in tools: files, changes, programs, pages."""

from __future__ import annotations

from fault import Fault

_TOOLS = "src/pyagent/infrastructure/tools"

FAULTS = (
    Fault(
        "folders-follow-links",
        f"{_TOOLS}/folder.py",
        "_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW |",
        "_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY |",
        "tests/unit/test_tools_files.py::test_nothing_leads_out_of_the_folder",
    ),
    Fault(
        "clients-read-the-users-folder",
        f"{_TOOLS}/files.py",
        "return Folder(access.root)",
        "return Folder(self._root)",
        "tests/unit/test_tools_files.py::test_client_of_a_server_reads_its_folder_and_writes_nothing",
    ),
    Fault(
        "undo-overwrites-later-work",
        f"{_TOOLS}/files.py",
        "        if later:\n",
        "        if not later and later:\n",
        "tests/unit/test_tools_files.py::test_undo_loses_no_later_change",
    ),
    Fault(
        "failed-changes-stay-half",
        f"{_TOOLS}/changes.py",
        "            self.undo(change_id, leaves_others=True)\n            raise",
        "            raise",
        "tests/unit/test_bulk_replace.py::test_a_failure_takes_back_what_was_done",
    ),
    Fault(
        "files-are-written-in-place",
        f"{_TOOLS}/whole_file.py",
        "os.rename(partial, leaf, src_dir_fd=folder, dst_dir_fd=folder)",
        (
            "os.truncate(os.open(leaf, os.O_CREAT|os.O_RDWR, dir_fd=folder), 0); os.rename(pa"
            "rtial, leaf, src_dir_fd=folder, dst_dir_fd=folder)"
        ),
        "tests/unit/test_bulk_replace.py::test_mode_attributes_and_hard_links",
    ),
    Fault(
        "failed-checks-are-kept",
        f"{_TOOLS}/propose_change.py",
        "if not all(outcome.passed for outcome in outcomes):",
        "if not outcomes:",
        "tests/unit/test_change_check.py::test_the_tool_is_off_asks_and_is_for_people",
    ),
    Fault(
        "protected-files-are-changed",
        f"{_TOOLS}/proposals.py",
        "        if _is_below(path, glob):",
        "        if path == glob:",
        "tests/unit/test_change_check.py::test_names_that_are_refused",
    ),
    Fault(
        "any-address-is-public",
        "src/pyagent/infrastructure/web/fetching.py",
        "if not allows_private and not is_public(address):",
        "if not allows_private and not address:",
        "tests/unit/test_tools_world.py::test_private_addresses_and_other_hosts_are_not_reached",
    ),
    Fault(
        "only-the-first-address-is-looked-at",
        "src/pyagent/infrastructure/web/fetching.py",
        "for address in addresses:",
        "for address in addresses[:1]:",
        "tests/unit/test_tools_world.py::test_name_with_one_private_address_is_refused",
    ),
    Fault(
        "names-are-looked-up-again",
        "src/pyagent/infrastructure/web/fetching.py",
        "return await self._inner.connect_tcp(address, port",
        "return await self._inner.connect_tcp(host, port",
        "tests/unit/test_tools_world.py::test_name_is_looked_up_once",
    ),
    Fault(
        "programs-reach-the-network",
        f"{_TOOLS}/limited.py",
        "(0 if uses_network else _CLONE_NEWNET)",
        "0",
        "tests/unit/test_tools_world.py::test_program_has_no_network_and_no_secrets",
    ),
)
