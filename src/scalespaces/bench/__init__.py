"""What the library costs beside plain PyTorch, OpenCV and the paper's algorithm: the command ``scalespaces bench``."""
