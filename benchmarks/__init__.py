"""What the library costs compared with plain PyTorch, OpenCV and the paper's algorithm: ``scalespaces bench``."""

__all__: list[str] = []
