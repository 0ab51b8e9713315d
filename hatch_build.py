"""Metadata that the build works out: addresses, and a README whose links work away from the repository."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Derive every address from ``repository`` in ``pyproject.toml``; files are those of this version's tag."""

    def update(self, metadata: dict) -> None:
        """Fill in ``urls`` and ``readme``."""
        repository, tag = self.config["repository"], f"v{metadata['version']}"
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/blob/{tag}/docs/index.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, repository, tag)}


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Let ``[text](path)`` and ``![text](path)`` point into the repository; addresses and anchors stay."""
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/raw/{tag}/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/blob/{tag}/", text)
