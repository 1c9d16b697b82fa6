"""Read and write files: atomic writes and safetensors; loading never runs code."""
