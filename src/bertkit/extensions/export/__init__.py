"""Export of models to ONNX and OpenVINO, quantization to 8-bit integers, and tuning."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "export",
    formats={"exported": "bertkit.extensions.export.exported_format:ExportedFormat"},
    accelerators={
        "engine": "bertkit.extensions.export.accelerated:accelerated_engine",
        "embedder": "bertkit.extensions.export.tuned_embedder:tuned_embedder",
    },
)
