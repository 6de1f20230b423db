from pathlib import Path

import pytest
from pyagent_kvfolder import KvFolder

from pyagent.testing import KvConnectorConformance


class TestFolder(KvConnectorConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KV_FOLDER", str(tmp_path))

    def make(self) -> KvFolder:
        return KvFolder()
