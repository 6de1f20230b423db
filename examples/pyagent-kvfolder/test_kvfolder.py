from pathlib import Path

from pyagent_kvfolder import FolderConnector

from pyagent.plugin import ChatRequest, KvLayout, KvPrompt, KvShape, PrefixKey


class Cache:
    shape = KvShape(
        kv_dtype="bf16",
        num_kv_heads=1,
        head_dim=16,
        rope="",
        block_tokens=16,
        groups=(("full", 0, 1),),
        layers_per_page=2,
        layer_bytes=64,
    )
    layout = KvLayout(weights="w", shape=shape)


def test_prompts_share_the_files_of_what_they_begin_with(tmp_path: Path):
    """A file's name follows from the tokens up to a block's end, and from the tenant."""
    connector = FolderConnector(tmp_path)
    connector.register("m", Cache())

    def files(tokens, tenant=""):
        return connector.files(KvPrompt("m", tokens, PrefixKey(tenant=tenant), ChatRequest(model="m")))

    long = files(list(range(48)))
    assert files(list(range(32))) == long[:2]
    assert not set(files(list(range(48)), "other")) & set(long)
