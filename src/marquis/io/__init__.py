"""Files: atomic writes and safetensors; loading never runs code."""
