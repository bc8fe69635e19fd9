"""Package metadata. Also places configuration/, scripts/, model_card/ and experiments/ inside the installed package."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
# Folders at the top of a clone -> subpackages once installed, so that a wheel has what a clone has.
MAPPED = {f"modeling_vanilla.{name}": name for name in ("configuration", "scripts", "model_card", "experiments")}

setup(
    name="vanilla-transformer",
    version="0.1.0",
    description='The Transformer of "Attention Is All You Need" as a first-class Hugging Face model',
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["modeling_vanilla", "modeling_vanilla.*"]), *MAPPED],
    package_dir=MAPPED,
    package_data={
        "modeling_vanilla": ["py.typed"],
        "modeling_vanilla.configuration": ["*.yaml", "accelerate/*"],
        "modeling_vanilla.model_card": ["*.md"],
    },
    install_requires=[
        "torch>=2.6",
        "transformers>=5.24,<6",
        "accelerate>=1.15",
        "datasets>=5.0",
        "evaluate>=0.4.6",
        "tokenizers>=0.22",
        "safetensors>=0.5",
        "sacrebleu>=2.5",
        "pyyaml>=6",
        "numpy>=1.26",
        "filelock>=3.13",
    ],
    extras_require={
        "tensorboard": ["tensorboard>=2.15"],
        "zstd": ["zstandard>=0.22"],
        "ctranslate2": ["ctranslate2>=4.8"],
        "onnx": ["onnx>=1.21", "onnxscript>=0.7", "onnxruntime>=1.21"],
        "moses": ["sacremoses>=0.1.1"],
        "peft": ["peft>=0.21"],
        "plots": ["matplotlib>=3.9"],
        "experiments": ["matplotlib>=3.9", "pillow>=11", "scikit-learn>=1.6"],
        "bench": ["ctranslate2>=4.8", "matplotlib>=3.9"],
        "demo": ["gradio>=6", "matplotlib>=3.9"],
        "browser": ["gradio>=6", "selenium>=4.30"],
        "images": ["pillow>=11", "scikit-learn>=1.6"],
        "test": [
            "ctranslate2>=4.8",
            "gradio>=6",
            "onnx>=1.21",
            "onnxscript>=0.7",
            "onnxruntime>=1.21",
            "matplotlib>=3.9",
            "sacremoses>=0.1.1",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "pillow>=11",
            "parameterized>=0.9",
            "peft>=0.21",
            "scikit-learn>=1.6",
            "setuptools>=77",
            "wheel>=0.43",
        ],
        "lint": ["ruff>=0.17", "mypy>=2", "types-PyYAML>=6"],
    },
    entry_points={"console_scripts": ["vanilla=modeling_vanilla.scripts.main:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
